"""Experiments on who runs when: admission, policies, chunks, queues, load."""
