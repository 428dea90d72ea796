"""Attention over a paged cache: tables, tiles, splits, layouts, chunks."""
