"""A batching loop from which no request leaves."""
