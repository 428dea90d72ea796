"""Figures of comparisons on paper: what a batch can reach, what a CPU can read, how fast versions follow each other."""

from datetime import date

from quizzes.oracles.models import SHAPES


def batch_rate(rows: int, context: int, gb_per_s: float) -> float:
    """Tokens per second of Llama-2-7B in 16 bits if memory alone limits: every matrix and every cached row, once."""
    layers, hidden, inner, *_, vocabulary = SHAPES["llama-2-7b"]
    weights = layers * (4 * hidden**2 + 3 * hidden * inner + 2 * hidden) + hidden + hidden * vocabulary
    rows_of_kv = rows * (context + 1) * 2 * layers * hidden
    seconds = 2 * (weights + rows_of_kv) / (gb_per_s * 1e9)
    return rows / seconds


def bus_gb_per_s(channels: int, mega_transfers: int) -> float:
    """A memory channel is 64 bits wide."""
    return channels * mega_transfers * 1e6 * 64 / 8 / 1e9


def stream_rate(channels: int, mega_transfers: int, billions: float, bits: float) -> float:
    """Tokens per second of one stream that reads every weight once per token."""
    bits_per_second = bus_gb_per_s(channels, mega_transfers) * 8e9
    return bits_per_second / (billions * 1e9 * bits)


def days_per_minor(first: int, first_day: str, last: int, last_day: str) -> float:
    """Between two minor versions, by their dates."""
    return (date.fromisoformat(last_day) - date.fromisoformat(first_day)).days / (last - first)


def minors_behind(first: int, first_day: str, last: int, last_day: str, age_days: int) -> float:
    """Releases in `age_days` at this pace."""
    return age_days / days_per_minor(first, first_day, last, last_day)
