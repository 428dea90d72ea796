"""Full caches: eviction, working sets, windows, host memory, and the cost of hashes."""

from itertools import takewhile
from random import Random
from typing import Literal

from engine.config.cache import TierConfig
from engine.core.blocks import Block, BlockEvent, add_listener
from engine.core.hashing import BlockHasher, sha256
from engine.core.request import Request
from engine.sampling_params import SamplingParams
from quizzes.experiments import Ask, Context, CoreEngine, Fresh, Result, arg, experiment


@experiment("E11")
def eviction_order(
    ctx: Context,
    chains: list[int] = arg([3, 2, 3], 1, 20, count=(1, 8)),
    touched: list[int] = arg([0], 0, 7, count=(0, 8)),
    take: int = arg(4, 0, 160),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Find which cached blocks are evicted first, after frees and hits.

    Requests of `chains` full blocks finish one after another; those in `touched` come again, in that order; then a
    last request takes `take` blocks. Every prompt is one token longer than its full blocks; the pool holds all chains.

    Returns: Chains are called a, b, c ... in order of arrival; a1 is the first block of chain a.
        order: Cached blocks in the order in which the last request's blocks overwrote them.
        left [blocks]: By chain: blocks from its start that can still be hit.
        free_before [blocks]: Free blocks when the last request arrives, cached ones included.
        cached_before [blocks]: Free blocks with content that can be hit.
    """
    fresh = Fresh()
    prompts = [fresh(length * block_size + 1) for length in chains]
    engine = ctx.core(
        block_size=block_size, num_blocks=sum(chains) + 1, max_num_batched_tokens=1 << 16, traced=True
    )
    pool = engine.scheduler.kv.pool
    name_of: dict[bytes, str] = {}
    order: list[str] = []

    def watch(kind: BlockEvent, block: Block, request_id: str | None) -> None:
        if kind == "evict" and block.block_hash is not None:
            order.append(name_of[block.block_hash])

    hashes: list[list[bytes]] = []
    for index, prompt in enumerate(prompts):
        request = engine.add(Ask(f"chain{index}", prompt, fresh(1)))
        hashes.append(list(request.block_hashes))
        name_of |= {block: f"{chr(ord('a') + index)}{n}" for n, block in enumerate(hashes[-1], 1)}
        engine.run()
    for turn, index in enumerate(index for index in touched if index < len(chains)):
        engine.run([Ask(f"again{turn}", prompts[index], fresh(1))])
    free, cached = engine.free_blocks, pool.num_evictable
    add_listener(pool, watch)
    if take:
        engine.run([Ask("last", fresh(min(take, sum(chains) + 1) * block_size), fresh(1))])
    left = [len(list(takewhile(pool.cached.__contains__, chain))) for chain in hashes]
    return Result(order=order, left=left, free_before=free, cached_before=cached)


@experiment("E11")
def working_set(
    ctx: Context,
    prefixes: int = arg(8, 1, 40),
    blocks_each: int = arg(4, 1, 32),
    pool: int = arg(40, 4, 2000),
    rounds: int = arg(4, 1, 12),
    visits: Literal["cyclic", "random"] = "cyclic",
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Visit more prefixes than fit into the cache, in turn or at random, and measure the hit rate of LRU.

    `prefixes` prompts of `blocks_each` full blocks, each sent once, then `rounds` times as many visits. cyclic: always
    in the same order. random: uniform draws. Each prompt ends in one more token, so a visit needs one block more than
    the prefix, and that block is never cached.

    Returns: Over all visits after the first one of each prefix.
        hit_rate [share]: Hit tokens over the prefixes' tokens.
        evictions [blocks]
        working_set [blocks]: Blocks of all prefixes together.
        pool [blocks]
    """
    fresh, size, rng = Fresh(), 16, Random(seed)
    pool = max(pool, blocks_each + 1)
    prompts = [fresh(blocks_each * size + 1) for _ in range(prefixes)]
    engine = ctx.core(block_size=size, num_blocks=pool, traced=True)
    order = list(range(prefixes))
    again = order * rounds if visits == "cyclic" else [rng.randrange(prefixes) for _ in order * rounds]
    for number, index in enumerate(order + again):
        engine.run([Ask(f"v{number}", prompts[index], fresh(1))])
    return Result(
        hit_rate=sum(engine.cached_tokens[prefixes:]) / (len(again) * blocks_each * size),
        evictions=engine.scheduler.kv.pool.num_evictions,
        working_set=prefixes * blocks_each,
        pool=pool,
    )


@experiment("E57")
def window_blocks(
    ctx: Context,
    window: int = arg(64, 1, 4096),
    prompt: int = arg(400, 2, 8000),
    output: int = arg(40, 3, 500),
    chunk: int = arg(32, 1, 8192),
    block_size: int = arg(16, 1, 128),
    scan: int = arg(6, 0, 400),
) -> Result:
    """Count the blocks that a long request holds under a sliding window, and what a later hit finds.

    Returns: One long request, then its prompt again. Layers see `window` positions, chunks have `chunk` tokens.
        most_held [blocks]: Maximum blocks after a step, with the window.
        held_at_end [blocks]: Blocks after the last step but one.
        full_attention [blocks]: Maximum blocks if every layer sees everything.
        given_back [blocks]: Blocks freed while it ran.
        hit_tokens [tokens]: Hit when the prompt comes again.
        hit_after_scan [tokens]: Hit when it comes again after another request has overwritten `scan` blocks.
    """
    pool = -(-(prompt + output) // block_size) + 2

    def serve(window: int | None) -> tuple[CoreEngine, list[int], list[int]]:
        """Return the engine, the blocks held after each step of the long request, and the later hits."""
        fresh = Fresh()
        tokens = fresh(prompt)
        engine = ctx.core(
            num_blocks=pool,
            block_size=block_size,
            max_num_batched_tokens=chunk,
            max_num_seqs=1,
            cache={"sliding_window": window},
            traced=window is not None,
        )
        engine.add(Ask("long", tokens, fresh(output)))
        held = []
        while engine.scheduler.has_unfinished():
            engine.step()
            held.append(engine.used_blocks)
        again = [Ask("again", tokens, fresh(1)), Ask("third", tokens, fresh(1))]
        if scan:
            again.insert(1, Ask("scan", fresh(min(scan, pool) * block_size), fresh(1)))
        for ask in again:
            engine.run([ask])
        hits = [engine.outcomes[name].cached_tokens for name in ("again", "third")]
        return engine, held[:-1], hits

    engine, held, (hit, hit_after_scan) = serve(window)
    _, full, _ = serve(None)
    return Result(
        most_held=max(held),
        held_at_end=held[-1],
        full_attention=max(full),
        given_back=sum(step.stats.num_blocks_behind_window for step in engine.steps[: len(held) + 1]),
        hit_tokens=hit,
        hit_after_scan=hit_after_scan,
    )


BLOCK = 16


@experiment("E58")
def host_tier(
    ctx: Context,
    prompt_blocks: int = arg(6, 1, 40),
    others_blocks: int = arg(8, 0, 200),
    pool: int = arg(10, 2, 400),
    host_blocks: int = arg(32, 1, 800),
    block_bytes: int = arg(2 << 20, 1, 67_108_864),
) -> Result:
    """Offload evicted blocks to host memory and see where a later hit finds them.

    A prompt of `prompt_blocks` full blocks and one token is served, other requests take `others_blocks`, and the
    prompt comes back. The device has `pool` blocks, host memory `host_blocks`. The others have at most half the pool.

    Returns: Figures of the returning request, with a host tier and without.
        device_tokens, host_tokens [tokens]
        computed_tokens, computed_without [tokens]: Prompt tokens computed with and without the tier.
        offloaded [blocks]: Blocks copied to the host by evictions.
        copied_in [blocks]
        bytes_in [bytes]: Bytes over the link for the returning request: blocks x bytes per block.
    """
    pool = max(pool, prompt_blocks + 1)

    def serve(tiers: TierConfig) -> tuple[CoreEngine, Request, int]:
        """Return the engine, the returning request and the step of its return."""
        fresh = Fresh()
        engine = ctx.core(num_blocks=pool, block_size=BLOCK, tiers=tiers, traced=tiers.offload)
        prompt = fresh(prompt_blocks * BLOCK + 1)
        engine.run([Ask("first", prompt, fresh(1))])
        most = max(1, pool // 2)
        for start in range(0, others_blocks, most):
            blocks = min(most, others_blocks - start)
            engine.run([Ask(f"other{start}", fresh(blocks * BLOCK), fresh(1))])
        began = engine.num_steps
        request = engine.add(Ask("again", prompt, fresh(1)))
        return engine.run(), request, began

    tiered, request, began = serve(TierConfig(host_blocks, offload=True, block_bytes=block_bytes))
    plain, _, _ = serve(TierConfig())
    back = [step.stats for step in tiered.steps[began:]]
    return Result(
        device_tokens=request.cached_tokens_by_source.get("device", 0),
        host_tokens=request.cached_tokens_by_source.get("host", 0),
        computed_tokens=tiered.outcomes["again"].computed_tokens,
        computed_without=plain.outcomes["again"].computed_tokens,
        offloaded=sum(step.stats.num_blocks_offloaded for step in tiered.steps),
        copied_in=sum(stats.num_blocks_copied_in for stats in back),
        bytes_in=sum(stats.host_bytes_in for stats in back),
    )


@experiment("E07")
def hash_work(
    ctx: Context,
    requests: int = arg(20, 1, 100),
    prompt: int = arg(200, 1, 2000),
    output: int = arg(10, 1, 100),
    pool: int = arg(64, 20, 5000),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Count the hashes that prefix caching computes for requests that share nothing.

    `requests` different prompts of `prompt` tokens go through a pool of `pool` blocks, with and without caching.

    Returns: Requests without a common prefix, with the cache and without.
        digests [hashes]: sha256 calls for all prompts: the root and one per full block.
        bytes_hashed [bytes]; hits, computed_with, computed_without [tokens]; steps_with, steps_without [steps]
        refused_with, refused_without [steps]: Steps in which a request waited for blocks; cached blocks count as free.
    """
    calls: list[int] = []

    def counted(data: bytes) -> bytes:
        calls.append(len(data))
        return sha256(data)

    fresh = Fresh()
    pool = max(pool, (prompt + output) // block_size + 1)
    asks = [Ask(f"r{index}", fresh(prompt), fresh(output)) for index in range(requests)]
    hasher = BlockHasher(block_size, digest=counted)
    for ask in asks:
        hasher.extend(Request(ask.request_id, ask.prompt_tokens(), SamplingParams(max_tokens=1)))
    engines = {
        name: ctx.core(
            block_size=block_size,
            num_blocks=pool,
            max_num_batched_tokens=prompt + requests,
            enable_prefix_caching=name == "with",
            traced=name == "with",
        ).run(asks)
        for name in ("with", "without")
    }
    return Result(
        digests=len(calls),
        bytes_hashed=sum(calls),
        hits=sum(engines["with"].cached_tokens),
        **{f"computed_{name}": engine.computed_tokens for name, engine in engines.items()},
        **{f"steps_{name}": engine.num_steps for name, engine in engines.items()},
        **{
            f"refused_{name}": sum(bool(step.plan.not_scheduled) for step in engine.steps)
            for name, engine in engines.items()
        },
    )
