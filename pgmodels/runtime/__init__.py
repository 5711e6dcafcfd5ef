"""What every module may need: double precision, compilation, threads, progress, pickling, files."""
