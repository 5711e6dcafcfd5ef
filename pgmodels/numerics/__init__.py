"""General numerical methods, independent of Gaussian processes."""
