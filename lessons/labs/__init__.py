"""Larger exercises in the learner's own editor: README.md."""
