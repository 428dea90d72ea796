"""Attention over the paged KV cache: one protocol, several backends."""
