"""Structured output: which tokens may come next, so that what is said always fits a pattern."""
