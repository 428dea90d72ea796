"""Helpers that several floors share. Imports the standard library only; see README.md."""
