"""Sizing, concurrency, latency budgets, evaluation statistics, cost."""
