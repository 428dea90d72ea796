"""Prefill and decode on different replicas."""
