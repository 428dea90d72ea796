"""Lessons in which the reader builds an inference engine. Start with README.md."""
