"""Engines in processes of their own, for comparisons. The files here run as scripts, each in its engine's Python."""
