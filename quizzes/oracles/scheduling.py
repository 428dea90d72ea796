"""Queues, chunks and policies, on paper."""

import heapq
import math

from quizzes.oracles.batching import starts


def chunk_steps(decodes: int, prompt: int, budget: int) -> int:
    """Steps for a prompt that gets what `decodes` single tokens leave of the budget."""
    return math.ceil(prompt / (budget - decodes))


def capped_steps(decodes: int, prompt: int, budget: int, threshold: int) -> int:
    """The same with a cap on one request's tokens in one step."""
    return math.ceil(prompt / min(threshold, budget - decodes))


def last_chunk(decodes: int, prompt: int, budget: int) -> int:
    return prompt - (chunk_steps(decodes, prompt, budget) - 1) * (budget - decodes)


def reread_tokens(prompt: int, chunk: int) -> int:
    """Positions whose KV is read: chunk i looks back to the start of the prompt."""
    whole, rest = divmod(prompt, chunk)
    return chunk * whole * (whole + 1) // 2 + (prompt if rest else 0)


def fcfs_mean(lens: list[int]) -> float:
    """One server, all there at the start: the mean of the running sums."""
    return sum(sum(lens[: i + 1]) for i in range(len(lens))) / len(lens)


def sjf_mean(lens: list[int]) -> float:
    return fcfs_mean(sorted(lens))


def sjf_long_wait(long: int, short: int, every: int, count: int) -> int:
    """Wait of one long job when short ones come all the time, on one server that takes the shortest first.

    Short job i comes at i * every; the long one comes with the first.
    """
    now, served = 0, 0
    while served < count and served * every <= now:
        now += short
        served += 1
    return now


def first_free_slot(low: int, slots: int, low_output: int, arrival: int) -> int:
    """Wait until a slot is free when `low` equal jobs started in waves from step 0."""
    waves = arrival // low_output
    busy = low - waves * slots >= slots
    return (waves + 1) * low_output - arrival if busy else 0


def lifetimes_that_fit(blocks: int, prompt: int, max_tokens: int, block_size: int) -> int:
    """Room for every token is reserved; the last one needs no slot."""
    return blocks // math.ceil((prompt + max_tokens - 1) / block_size)


def steady_wait(slots: int, service: int, every: int, number: int) -> int:
    """Wait of arrival `number` (from 0): constant gaps, constant service, `slots` servers (the D/D/c queue)."""
    arrivals = [every * index for index in range(number + 1)]
    return starts(slots, [service] * len(arrivals), arrivals)[-1] - arrivals[-1]


def turned_away(slots: int, service: int, every: int, arrivals: int, bound: int) -> int:
    """Arrivals that find `bound` waiting, constant gaps and service."""
    free_at, rejected = [0] * slots, 0
    started: list[int] = []
    for index in range(arrivals):
        now = index * every
        waiting = sum(start > now for start in started)
        idle = sum(end <= now for end in free_at)
        if waiting >= bound + idle:
            rejected += 1
            continue
        start = max(now, heapq.heappop(free_at))
        heapq.heappush(free_at, start + service)
        started.append(start)
    return rejected


def fair_small_tenant(count: int, length: int) -> float:
    """Mean latency of a tenant's single job of `length` beside `count` equal ones of another, one server, fair turns.

    Both have spent nothing, so the second tenant's job comes after the first's first one.
    """
    return 2.0 * length


def little_wait(mean_queue: float, throughput: float) -> float:
    return mean_queue / throughput


CARDS = {"h100": (989.4e12, 3.35e12), "a100-80": (312e12, 2.039e12)}
"""Dense bfloat16 FLOP/s and bytes/s of the datasheets."""


def stall_ratio(prompt: int, small: int, decodes: int, gpu: str) -> float:
    """Longest step with a prompt of Llama-3.1-8B whole, over the longest with a budget of `small`; on paper.

    70 % of peak in GEMMs, half of it in attention, 80 % of bandwidth for weights and 75 % for KV;
    0.8 ms for a step, 20 us for each of the 32 layers. Decodes look back at about 1,010 tokens.
    """
    flops, bandwidth = CARDS[gpu]
    layer = 4096 * 4096 * 2 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    weights, head, kv = 32 * layer, 4096 * 128_256, 2 * 32 * 8 * 128 * 2

    def step(start: int, tokens: int) -> float:
        rows = decodes + tokens
        linear = max(2 * weights * rows / (0.7 * flops), 2 * weights / (0.8 * bandwidth))
        logits = max(2 * head * (decodes + 1) / (0.7 * flops), 2 * head / (0.8 * bandwidth))
        pairs = tokens * start + tokens * (tokens + 1) / 2
        looking = max(pairs * 32 * 4 * 32 * 128 / (0.5 * flops), (start + tokens) * kv / (0.75 * bandwidth))
        return linear + logits + looking + decodes * 1010 * kv / (0.75 * bandwidth) + 0.8e-3 + 32 * 20e-6

    chunk = small - decodes
    whole_chunks = prompt // chunk
    return step(0, prompt) / step((whole_chunks - 1) * chunk, chunk)


def running_by_iteration(rate: float, ttft: float, base: float, per: float, output: int) -> float:
    """Start empty and apply Little's law until the number in the system no longer changes."""
    running = 0.0
    for _ in range(2000):
        running = rate * (ttft + (output - 1) * (base + per * running)) / 1000
    return running


def rate_without_fixed_point(per: float, output: int) -> float:
    """The rate at which one more request in the system brings exactly one more, by bisection."""
    low, high = 0.0, 1e6
    for _ in range(200):
        rate = (low + high) / 2
        low, high = (rate, high) if rate * (output - 1) * per / 1000 < 1 else (low, rate)
    return low
