"""Gateways, scaling rules, alerts and queues in closed forms."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, floor


def probes_while_down(down_for: int, threshold: int, cooldown: int) -> int:
    """Calls to a backend that is down: `threshold` open the breaker, then one in cooldown + 1 requests."""
    return threshold + (down_for - threshold) // (cooldown + 1)


def exposed(share: float, look_every: int, fails_every: int) -> float:
    """Failures that users see before a guard looks for the first time, on average."""
    return share * look_every / fails_every


def ready_after(jump_at: float, sustain_out: float, interval: float, start_s: float) -> float:
    """Seconds from a jump of the load until a new replica serves; the rule looks at multiples of `interval`."""
    first_look = ceil(jump_at / interval) * interval
    held = ceil(sustain_out / interval) * interval
    return first_look + held - jump_at + start_s


def below_after(before: float, after: float, threshold: float, window_min: int) -> int:
    """Minutes until the mean over the window is below the threshold: old minutes leave it one by one."""
    b, a, t = (Fraction(str(value)) for value in (before, after, threshold))
    return floor((b - t) / (b - a) * window_min) + 1


def fires_after(before: float, after: float, threshold: float, window_min: int, for_min: int) -> int:
    return below_after(before, after, threshold, window_min) + for_min


def mixture_p99(fast_n: int, slow_n: int, fast_ms: int, slow_ms: int) -> int:
    """The value of rank ceil(0.99 n): a slow one unless the slow ones are fewer than those above that rank."""
    low, high, num_low = (fast_ms, slow_ms, fast_n) if fast_ms <= slow_ms else (slow_ms, fast_ms, slow_n)
    rank = -(-99 * (fast_n + slow_n) // 100)
    return low if rank <= num_low else high


def hit_share(requests: int, shared: int, own: int, block_size: int = 16) -> float:
    """All but the first request find the full blocks of the common beginning."""
    found = min(shared, shared + own - 1) // block_size * block_size
    return (requests - 1) * found / (requests * (shared + own))
