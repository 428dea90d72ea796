"""Batching: static, continuous, padded and packed."""
