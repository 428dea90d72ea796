"""Steps of batches, on paper."""

import heapq


def sum_of_row_maxima(slots: int, lens: list[int]) -> int:
    """Static batching: each group of `slots` lasts as long as its longest member."""
    return sum(max(lens[start : start + slots]) for start in range(0, len(lens), slots))


def starts(slots: int, lens: list[int], arrivals: list[int] | None = None) -> list[int]:
    """Start of each request: it takes the slot that frees first, not before it arrives (Graham's list scheduling)."""
    free_at, begun = [0] * slots, []
    for length, arrival in zip(lens, arrivals or [0] * len(lens), strict=True):
        begun.append(max(arrival, heapq.heappop(free_at)))
        heapq.heappush(free_at, begun[-1] + length)
    return begun


def list_schedule(slots: int, lens: list[int]) -> int:
    """Steps of continuous batching."""
    return max(start + length for start, length in zip(starts(slots, lens), lens, strict=True))


def finish_step(slots: int, lens: list[int], which: int) -> int:
    """Step (from 0) that gives request `which` its last token under continuous batching."""
    return starts(slots, lens)[which] + lens[which] - 1


def collected_waits(slots: int, window: int, arrivals: list[int], lens: list[int]) -> list[int]:
    """Waits of a server that starts a batch when it is idle and `slots` wait, or the oldest has waited `window`."""
    waits, at, now = [], 0, 0
    while at < len(arrivals):
        full = arrivals[at + slots - 1] if at + slots <= len(arrivals) else float("inf")
        start = int(max(now, min(full, arrivals[at] + window)))
        batch = [i for i in range(at, len(arrivals)) if arrivals[i] <= start][:slots]
        waits += [start - arrivals[i] for i in batch]
        now = start + max(lens[i] for i in batch)
        at = batch[-1] + 1
    return waits


def collected_total_wait(slots: int, window: int, arrivals: list[int], lens: list[int]) -> int:
    return sum(collected_waits(slots, window, arrivals, lens))


def continuous_total_wait(slots: int, arrivals: list[int], lens: list[int]) -> int:
    return sum(starts(slots, lens, arrivals)) - sum(arrivals)


def rectangle(lens: list[int]) -> int:
    return len(lens) * max(lens)


def row_starts(lens: list[int]) -> list[int]:
    """Running sums: where each row of a packed batch begins, and the end of the last."""
    return [sum(lens[:index]) for index in range(len(lens) + 1)]


def last_block_tails(lens: list[int], block: int) -> int:
    """Unused slots when every row rounds up to whole blocks."""
    return sum((block - length % block) % block for length in lens)


def capture_size(rows: int, largest: int) -> int:
    """The next size that is captured in vLLM's default list; the rows themselves above the largest."""
    if rows > largest:
        return rows
    if rows <= 4:
        return (1, 2, 4, 4)[rows - 1]
    step = 8 if rows <= 248 else 16
    return -(-rows // step) * step


def straggler_use(slots: int, short: int, long: int) -> float:
    """Percent of a static group's slot steps at work: one member takes `long`, the others `short`."""
    return 100 * (long + (slots - 1) * short) / (slots * long)


def places(pool: int, longest: int) -> int:
    """Requests that fit one after the other when each reserves the longest possible length."""
    return sum(1 for _ in range(longest, pool + 1, longest))


def paged_places(pool: int, mean: int, block: int) -> int:
    """Requests that fit when each takes whole blocks."""
    blocks, per_request = pool // block, (mean + block - 1) // block
    return blocks // per_request


def token_rate_gain(
    pool: int, longest: int, mean: int, block: int, weights_ms: float, row_us: float
) -> float:
    """Tokens per second with paging over those with reservations: rows over the time of a step."""

    def rate(rows: int) -> float:
        return rows / (weights_ms * 1000 + rows * row_us)

    return rate(paged_places(pool, mean, block)) / rate(places(pool, longest))
