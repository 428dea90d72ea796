"""Sampling: E39, E40."""
