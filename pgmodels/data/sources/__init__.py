"""Rows of data that need not fit into memory, a block at a time."""
