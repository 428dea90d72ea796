"""Helpers that several floors share. See README.md."""
