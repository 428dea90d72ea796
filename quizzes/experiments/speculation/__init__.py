"""Speculative decoding: E36, E37, E38."""
