"""Tensor, pipeline, data and expert parallel: E46."""
