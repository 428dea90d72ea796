"""Preemption and other ways to run out of memory."""
