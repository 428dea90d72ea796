"""Tensor, pipeline, data and expert parallelism."""
