"""Gateways, scaling rules, alerts and queues in closed forms."""

from fractions import Fraction
from math import ceil, floor


def probes_while_down(down_for: int, threshold: int, cooldown: int) -> int:
    """Calls to a backend that is down: `threshold` open the breaker, then one in cooldown + 1 requests."""
    return threshold + (down_for - threshold) // (cooldown + 1)


def exposed(share: float, look_every: int, fails_every: int) -> float:
    """Failures that users see before a guard looks for the first time, on average."""
    return share * look_every / fails_every


def ready_after(jump_at: float, sustain_out: float, interval: float = 10, start_s: float = 0) -> float:
    """Seconds from a jump of the load until a new replica serves; the rule looks at multiples of `interval`."""
    first_look = ceil(jump_at / interval) * interval
    held = ceil(sustain_out / interval) * interval
    return first_look + held - jump_at + start_s


def below_after(before: float, after: float, threshold: float, window_min: int) -> int:
    """Minutes until the mean over the window is below the threshold: old minutes leave it one by one."""
    b, a, t = (Fraction(str(value)) for value in (before, after, threshold))
    return floor((b - t) / (b - a) * window_min) + 1


def mixture_p99(fast_n: int, slow_n: int, fast_ms: int, slow_ms: int) -> int:
    """The value of rank ceil(0.99 n): a slow one unless the slow ones are fewer than those above that rank."""
    low, high, num_low = (fast_ms, slow_ms, fast_n) if fast_ms <= slow_ms else (slow_ms, fast_ms, slow_n)
    rank = -(-99 * (fast_n + slow_n) // 100)
    return low if rank <= num_low else high


def hit_share(requests: int, shared: int, own: int, block_size: int = 16) -> float:
    """All but the first request find the full blocks of the common beginning."""
    hit = min(shared, shared + own - 1) // block_size * block_size
    return (requests - 1) * hit / (requests * (shared + own))


def little_length(rate: float, goal: float) -> float:
    """Mean number waiting for a wait of `goal` milliseconds: area under the queue per second, customer by customer."""
    return sum(goal / 1000 for _ in range(int(rate)))


def little_wait(rate: float, alert: float) -> float:
    """Seconds until the last of `alert` has left, when one leaves every 1 / rate seconds."""
    return float(alert * Fraction(1, int(rate)))


def backlog_after(jump_at: float, sustain_out: float, start_s: float, excess_rate: float) -> int:
    return int(ready_after(jump_at, sustain_out, 10, start_s) * excess_rate)


def alarm_minute(before: float, after: float, window: int, hold: int) -> int:
    """Minute by minute: the first of `hold` + 1 minutes in a row with a mean below one half."""
    minute = run = 0
    while run <= hold:
        minute += 1
        new = min(minute, window)
        mean = (Fraction(str(after)) * new + Fraction(str(before)) * (window - new)) / window
        run = run + 1 if mean < Fraction(1, 2) else 0
    return minute


def failures_seen(rate: float, share: float, every: int, minutes: int) -> float:
    """Failures per minute on the canary, minute by minute."""
    return float(sum(Fraction(str(share)) * int(rate) * 60 / every for _ in range(minutes)))


def failures_seen_all(rate: float, every: int, minutes: int) -> float:
    return failures_seen(rate, 1, every, minutes)


def hours_of_budget(goal: float, bad: float, days: int, left: float) -> float:
    """Hours until the misses allowed in `days` days are used up, counted per request of even traffic."""
    allowed = (1 - goal / 100) * left / 100 * days * 24
    return allowed / (bad / 100)


def moved_at_limit(rate: float, limit: float) -> float:
    """Percentage of the requests that lose all their hits when the rate falls by exactly `limit` points."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rate - rate * (1 - middle) <= limit else (low, middle)
    return 100 * low


def seen_percent(hit: float, prompts: int) -> float:
    """Chance that one of the prompts is concerned, summed over which one is the first."""
    share, unseen, seen = hit / 100, 1.0, 0.0
    for _ in range(prompts):
        seen += unseen * share
        unseen *= 1 - share
    return 100 * seen


def nights_to_see(hit: float, prompts: int) -> int:
    """Nights until at most 5 % are left, by multiplying night by night."""
    nights, unseen = 0, 1.0
    while unseen > 0.05:
        unseen *= 1 - seen_percent(hit, prompts) / 100
        nights += 1
    return nights
