"""Machinery of the lessons: read, build, open, check and run them."""
