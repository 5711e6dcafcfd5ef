"""Infrastructure without Gaussian processes: double precision, compilation, threads, progress, pickling, files."""
