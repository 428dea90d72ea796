"""Scheduling: admission, policies, chunks, queues, load."""
