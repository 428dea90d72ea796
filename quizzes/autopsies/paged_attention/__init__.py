"""Paged attention whose shapes almost fit."""
