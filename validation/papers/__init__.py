"""Claims of five papers, each measured beside what is published: ``python -m validation.papers``."""
