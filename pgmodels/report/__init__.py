"""What is shown of results: HTML, tables, words."""
