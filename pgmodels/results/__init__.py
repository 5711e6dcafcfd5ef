"""What engines return."""
