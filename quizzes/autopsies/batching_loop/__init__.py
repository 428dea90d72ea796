"""A batching loop from which nobody leaves."""
