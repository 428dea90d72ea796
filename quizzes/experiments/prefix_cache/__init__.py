"""Prefix cache: hits, sharing, eviction, isolation, tiers, routing."""
