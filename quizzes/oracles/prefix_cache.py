"""Prefix caches with pencil and paper: hits from lengths alone, LRU as a list, sharing as sets of positions."""

from collections import OrderedDict
from math import ceil
from random import Random


def full_blocks(tokens: int, block_size: int = 16) -> int:
    """Tokens in the full blocks of `tokens` tokens."""
    return tokens - tokens % block_size


def repeat_hit(prompt: int, block_size: int = 16) -> int:
    """A prompt that comes again: whole blocks, and at least one token is left to compute."""
    return full_blocks(prompt - 1, block_size)


def repeat_computed(prompt: int, block_size: int = 16) -> int:
    return prompt - repeat_hit(prompt, block_size)


def _chat_hits(system: int, user: int, answer: int, turns: int, block_size: int = 16) -> list[int]:
    """Written by the end of a turn: everything but the answer's last token, in full blocks."""
    written, hits = 0, []
    for turn in range(turns):
        hits.append(min(full_blocks(written, block_size), system + turn * (user + answer) + user - 1))
        written = system + (turn + 1) * (user + answer) - 1
    return hits


def chat_hit_last(system: int, user: int, answer: int, turns: int, block_size: int = 16) -> int:
    return _chat_hits(system, user, answer, turns, block_size)[-1]


def chat_computed(system: int, user: int, answer: int, turns: int, block_size: int = 16) -> int:
    return chat_without(system, user, answer, turns) - sum(
        _chat_hits(system, user, answer, turns, block_size)
    )


def chat_without(system: int, user: int, answer: int, turns: int) -> int:
    """Sum of an arithmetic series."""
    return turns * (system + user) + (user + answer) * turns * (turns - 1) // 2


def chat_hit_rate(system: int, user: int, answer: int, turns: int, block_size: int = 16) -> float:
    total = chat_without(system, user, answer, turns)
    return 100 * (1 - chat_computed(system, user, answer, turns, block_size) / total)


def shared_hit(shared: int, own: int, block_size: int = 16) -> int:
    return min(full_blocks(shared, block_size), full_blocks(shared + own - 1, block_size))


def shared_prefill(requests: int, shared: int, own: int, block_size: int = 16) -> int:
    return requests * (shared + own) - (requests - 1) * shared_hit(shared, own, block_size)


def shared_peak(requests: int, shared: int, own: int, output: int, block_size: int = 16) -> int:
    """Distinct blocks: the common full ones once, the rest once per request. An answer's last token is not written."""
    per_request = ceil((shared + own + output - 1) / block_size)
    common = shared_hit(shared, own, block_size) // block_size
    return common + requests * (per_request - common)


def forked_blocks(samples: int, prompt: int, generated: int, block_size: int = 16) -> int:
    """Fork: positions stay shared by all samples if their block is full at the fork."""
    owners = {
        (position // block_size, 0 if position // block_size < prompt // block_size else sample)
        for sample in range(samples)
        for position in range(prompt + generated)
    }
    return len(owners)


def fork_copies(samples: int, prompt: int, block_size: int = 16) -> int:
    """Only a block that is part full at the fork is written by several; the last of them writes in place."""
    return samples - 1 if prompt % block_size else 0


def hashed_blocks(samples: int, prompt: int, generated: int, block_size: int = 16) -> int:
    """Requests of one prompt: shared are the blocks that a repeated prompt hits."""
    common = repeat_hit(prompt, block_size) // block_size
    return common + samples * (ceil((prompt + generated) / block_size) - common)


def one_parent_copies(beams: int, prompt: int, generated: int, block_size: int = 16) -> int:
    """All beams of a step share everything before it: where that ends inside a block, all but the last writer copy."""
    return sum((beams - 1) for step in range(generated) if (prompt + step) % block_size)


def write_places(sequences: int, prompt: int, writers: list[int], block_size: int = 16) -> list[int]:
    """Tables as lists of names; a name held twice is copied before it is written. Places of the copies, from 1."""
    length = {sequence: prompt for sequence in range(sequences)}
    table = {
        sequence: [f"p{block}" for block in range(ceil(prompt / block_size))] for sequence in range(sequences)
    }
    places = []
    for turn, writer in enumerate((writer % sequences for writer in writers), 1):
        mine = table[writer]
        if length[writer] % block_size == 0:
            mine.append(f"new{turn}")
        elif sum(mine[-1] in other for other in table.values()) > 1:
            mine[-1] = f"copy{turn}"
            places.append(turn)
        length[writer] += 1
    return places or [0]


def write_copies(sequences: int, prompt: int, writers: list[int], block_size: int = 16) -> int:
    return sum(place > 0 for place in write_places(sequences, prompt, writers, block_size))


def reuse_order(chains: list[int], touched: list[int], take: int) -> list[str]:
    """A list of names, the front is reused first. A chain returns its tail before its start."""
    queue: list[str] = []
    names = [[f"{chr(97 + index)}{n}" for n in range(length, 0, -1)] for index, length in enumerate(chains)]
    for chain in names:
        queue += chain
    for index in touched:
        queue = [name for name in queue if name not in names[index]] + names[index]
    return queue[: max(0, min(take, sum(chains) + 1) - 1)]  # one free block holds nothing


class _LRU:
    """Cached blocks by name, least recently used first; used ones are gone from it while a request runs."""

    def __init__(self, pool: int) -> None:
        self.pool = pool
        self.cached: OrderedDict[tuple[object, int], None] = OrderedDict()

    def visit(self, chain: object, blocks: int, extra: int) -> int:
        """A prompt of `blocks` full blocks and `extra` more that are never cached; returns blocks hit."""
        hit = 0
        while hit < blocks and (chain, hit) in self.cached:
            hit += 1
        for index in range(hit):
            del self.cached[chain, index]
        while len(self.cached) + blocks + extra > self.pool:
            self.cached.popitem(last=False)
        for index in reversed(range(blocks)):
            self.cached.pop((chain, index), None)
            self.cached[chain, index] = None
        return hit


def lru_hit_percent(prefixes: int, blocks_each: int, pool: int, rounds: int, visits: str, seed: int) -> float:
    lru, rng = _LRU(max(pool, blocks_each + 1)), Random(seed)
    draws = [
        rng.randrange(prefixes) if visits == "random" else i % prefixes for i in range(prefixes * rounds)
    ]
    for index in range(prefixes):
        lru.visit(index, blocks_each, 1)
    hits = sum(lru.visit(index, blocks_each, 1) for index in draws)
    return 100 * hits / (len(draws) * blocks_each)


def lru_hit_blocks(prefixes: int, blocks_each: int, pool: int, rounds: int, visits: str, seed: int) -> float:
    return lru_hit_percent(prefixes, blocks_each, pool, rounds, visits, seed) * blocks_each / 100


def chat_beside_scan_percent(
    sessions: int, session_blocks: int, documents: int, document_blocks: int, pool: int, rounds: int
) -> float:
    """The chat tenant's hit rate in one pool, in percent."""
    lru, hits = _LRU(max(pool, 2 * max(session_blocks, document_blocks) + 4)), 0
    for turn in range(rounds):
        for session in range(sessions):
            hit = lru.visit(("chat", session), session_blocks, 1)
            hits += hit if turn else 0
        for document in range(documents):
            lru.visit(("scan", turn, document), document_blocks, 0)
    return 100 * hits / ((rounds - 1) * sessions * session_blocks)


def volatile_hit(prompt: int, position: int, block_size: int = 16) -> int:
    """Blocks that end before the changed token."""
    return full_blocks(min(position, prompt - 1), block_size)


def volatile_lost(prompt: int, position: int, block_size: int = 16) -> int:
    return repeat_hit(prompt, block_size) - volatile_hit(prompt, position, block_size)


def tree_hit_last(system: int, user: int, answer: int, turns: int) -> int:
    """Token tree: everything that was computed, to the token."""
    return system + (turns - 1) * (user + answer) - 1


def gated(change: str, position: int, gate: int) -> bool:
    """A comparison of the first `gate` tokens sees a change in them and none behind them."""
    return change != "none" and position < gate


def tiered_host_tokens(prompt_blocks: int, others_blocks: int, pool: int) -> int:
    """Blocks of the first prompt that others pushed out, its tail first. One free block holds nothing."""
    pushed = max(0, min(others_blocks, prompt_blocks + others_blocks - pool))
    return 16 * min(prompt_blocks, pushed)


def window_most(window: int, prompt: int, output: int, chunk: int, block_size: int = 16) -> int:
    """Brute force: blocks that the tokens seen by some step, and the tokens it writes, lie in."""
    most, start, total = 0, 0, prompt + output - 1
    while start < total:
        end = min(start + chunk, prompt) if start < prompt else start + 1
        seen = range(max(0, start - window + 1) // block_size, (end - 1) // block_size + 1)
        gone = max(0, end - window + 1) // block_size
        if end < total:  # after the last step all blocks are free
            most = max(most, sum(block >= gone for block in seen))
        start = end
    return most


def image_hit(image_at: int, prompt_tokens: int, block_size: int, same_image: bool) -> int:
    return full_blocks(prompt_tokens - 1 if same_image else min(image_at, prompt_tokens - 1), block_size)


def _first_visits(replicas: int, sessions: int, turns: int) -> int:
    """Pairs of session and replica when requests go round in turn."""
    return len({(i % sessions, i % replicas) for i in range(sessions * turns)})


def round_robin_hit_percent(
    replicas: int, sessions: int, turns: int, prompt: int, prefix: int, block_size: int = 16
) -> float:
    hit = full_blocks(min(prefix, prompt - 1), block_size)
    requests = sessions * turns
    return 100 * hit * (requests - _first_visits(replicas, sessions, turns)) / (requests * prompt)


def affinity_hit_percent(sessions: int, turns: int, prompt: int, prefix: int, block_size: int = 16) -> float:
    hit = full_blocks(min(prefix, prompt - 1), block_size)
    return 100 * hit * (turns - 1) / (turns * prompt)


def salted_extra(tenants: int, system: int, own: int, block_size: int = 16) -> int:
    """Tokens computed more because each tenant pays for the system prompt once."""
    return (tenants - 1) * shared_hit(system, own, block_size)


def cache_cost_ratio(prefix: int, rest: int, reads: int, write_price: float, read_price: float) -> float:
    """Input cost with a provider's prompt cache over without, for one write and `reads` reads; prices in units of the
    normal input price."""
    with_cache = prefix * (write_price + reads * read_price) + (1 + reads) * rest
    return with_cache / ((1 + reads) * (prefix + rest))


def break_even_reads(write_price: float, read_price: float) -> int:
    """Fewest reads within the lifetime for which the marked prefix costs less than without the cache."""
    reads = 0
    while write_price + reads * read_price >= 1 + reads:
        reads += 1
        if reads > 1000:
            raise ValueError("reads never pay for the write: the read price is not below the normal price")
    return reads


def cost_percent(prefix: int, rest: int, reads: int, write_price: float, read_price: float) -> float:
    return 100 * cache_cost_ratio(prefix, rest, reads, write_price, read_price)


def mean_rise(before: float, drop: float, saved: float) -> float:
    """Means of hits and misses, before and after; a miss takes `saved` longer than a hit, which takes 0."""
    return ((100 - before + drop) * saved - (100 - before) * saved) / 100


def needed_value(before: float, drop: float, rise: float) -> float:
    """Return the value of a hit that gives this rise."""
    return rise / mean_rise(before, drop, 1.0)


def hybrid_hit(window: int, full: int, run: int) -> int:
    """The longest hit, by trying: full attention has blocks 1..full; the window group has all of them but run + 1."""
    for blocks in range(full, 0, -1):
        # 0-based positions that the next token looks back at
        seen = range(16 * blocks - (window - 1), 16 * blocks)
        if all(position < 0 or position // 16 != run for position in seen):
            return 16 * blocks
    return 0


def break_even_link(billions: int, layers: int, heads: int, width: int, tflops: int) -> float:
    """GB/s at which a thousand tokens take as long over the link as through the model."""
    tokens = 1000
    num_bytes = tokens * layers * heads * width * (2 + 2)  # a key and a value of two bytes each
    seconds = tokens * 2 * billions / (tflops * 1000)
    return num_bytes / seconds / 1e9


def loading_is_faster(billions: int, layers: int, heads: int, width: int, tflops: int, link: int) -> bool:
    return link > break_even_link(billions, layers, heads, width, tflops)
