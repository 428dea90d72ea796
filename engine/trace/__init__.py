"""Traces: record a run, replay it, explain it, fork it, compare two runs (README.md has the reading order)."""
