"""Batching: E13, E15, E16, E29."""
