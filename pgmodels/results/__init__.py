"""The results of engines."""
