"""Prefill and decode on different replicas: E45."""
