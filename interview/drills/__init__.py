"""Incident drills: a real server on this machine with one thing wrong, under a seeded load."""
