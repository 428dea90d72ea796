"""Benchmarks that return dataclasses; `prep bench` prints them."""
