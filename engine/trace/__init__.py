"""Traces: record a run, read it back, replay it, fork it, compare two of them."""
