"""Engines in separate processes, for comparisons. The files here run as scripts, each in its engine's Python."""
