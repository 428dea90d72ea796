"""Incident drills: a real server on this machine with one thing wrong, under a seeded load."""

LIBRARIES = ("fastapi", "uvicorn", "uvloop", "prometheus_client")
"""Needed by the servers of drills: the extra `serve`."""
