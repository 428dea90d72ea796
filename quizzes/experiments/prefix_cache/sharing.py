"""Blocks that several sequences share: requests, samples and beams."""

from random import Random
from typing import Literal

from engine.core.blocks import BlockEvent, add_listener
from engine.frontend.block_space_manager import BlockSpaceManager
from quizzes.experiments import Ask, Context, CoreEngine, Fresh, Result, arg, experiment


@experiment("E07")
def shared_prefix(
    ctx: Context,
    requests: int = arg(4, 1, 64),
    shared: int = arg(100, 0, 4000),
    own: int = arg(20, 1, 2000),
    output: int = arg(20, 1, 300),
    block_size: int = arg(16, 1, 128),
    together: bool = True,
) -> Result:
    """Serve requests with a common prefix, at once or one after the other; count hits, blocks and shared writes.

    Prompts share their first `shared` tokens and have `own` unique tokens each. together: all arrive before the first
    step. Otherwise each arrives when the previous one has finished.

    Returns: The same requests with and without the prefix cache.
        cached_tokens [tokens]: Hit tokens by request, in order of arrival.
        prefill_tokens, prefill_without [tokens]: Prompt tokens computed, with the cache and without.
        prefill_saved [share]
        blocks, blocks_without [blocks]: Maximum blocks in use, with the cache and without.
        memory_saved [share]
        writes_to_shared [blocks]: Writes into a block of several requests, which copy-on-write would copy.
    """

    def serve(caching: bool) -> tuple[CoreEngine, int, int]:
        """Return the engine, its peak number of blocks in use, and its writes into blocks of several requests."""
        fresh = Fresh()
        beginning = fresh(shared)
        engine = ctx.core(
            block_size=block_size,
            num_blocks=requests * ((shared + own + output) // block_size + 2),
            max_num_batched_tokens=requests * (shared + own),
            enable_prefix_caching=caching,
            traced=caching,
        )
        pool, in_use, written = engine.scheduler.kv.pool, [0], 0
        add_listener(pool, lambda kind, *_: in_use.append(pool.num_used if kind == "alloc" else 0))
        for index in range(requests):
            engine.add(Ask(f"r{index}", beginning + fresh(own), fresh(output)))
            while engine.scheduler.has_unfinished() and (not together or index == requests - 1):
                for request_id, (start, count) in engine.step().rows.items():
                    request = engine.scheduler.requests.get(request_id)
                    if request is not None:
                        blocks = request.blocks[start // block_size : (start + count - 1) // block_size + 1]
                        written += sum(block.ref_count > 1 for block in blocks)
        engine.close()
        return engine, max(in_use), written

    (on, blocks, writes_to_shared), (_, blocks_without, _) = serve(True), serve(False)
    total, hits = requests * (shared + own), sum(on.cached_tokens)
    return Result(
        cached_tokens=on.cached_tokens,
        prefill_tokens=total - hits,
        prefill_without=total,
        prefill_saved=hits / total,
        blocks=blocks,
        blocks_without=blocks_without,
        memory_saved=1 - blocks / blocks_without,
        writes_to_shared=writes_to_shared,
    )


@experiment("E09")
def parallel_sampling(
    ctx: Context,
    samples: int = arg(4, 1, 64),
    prompt: int = arg(100, 1, 4000),
    generated: int = arg(50, 1, 400),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Count the blocks of n samples of one prompt: forked tables with copy-on-write, and requests with hashed blocks.

    Each sample writes KV of `generated` tokens. fork_*: engine.frontend.block_space_manager, the design of vLLM 0.6.
    hashed_*: the engine's scheduler with its prefix cache, where samples are requests, as in vLLM V1.

    Returns: Blocks on the device for n samples, each of `generated` tokens after the same prompt.
        fork_blocks [blocks]: Fork: in use when all samples exist and none has written.
        fork_copies [blocks]: Fork: blocks copied on write until the end.
        fork_end [blocks]: Fork: in use at the end.
        hashed_end [blocks]: Prefix cache: distinct blocks allocated for the n requests; nothing is ever copied.
        hashed_prompt_tokens [tokens]: Prefix cache: prompt tokens computed for all samples together.
        unshared_end [blocks]: No sharing: each sample has its own copy of every block.
    """
    most = samples * ((prompt + generated) // block_size + 2)
    manager = BlockSpaceManager(most, 0, block_size)
    manager.allocate(0, prompt)
    for child in range(1, samples):
        manager.fork(0, child)
    at_fork = manager.num_used_blocks
    for _ in range(generated):
        for sample in range(samples):
            manager.append_slot(sample)

    def as_requests(caching: bool) -> tuple[int, int]:
        """Return (blocks taken, prompt tokens computed). The last token of an answer is never written."""
        fresh = Fresh()
        tokens = fresh(prompt)
        engine = ctx.core(
            block_size=block_size,
            num_blocks=2 * most,
            max_num_batched_tokens=samples * prompt,
            enable_prefix_caching=caching,
            traced=caching,
        )
        events: list[BlockEvent] = []
        add_listener(engine.scheduler.kv.pool, lambda kind, *_: events.append(kind))
        engine.run([Ask(f"s{i}", tokens, fresh(generated + 1)) for i in range(samples)])
        return events.count("alloc"), engine.computed_tokens - samples * generated

    (hashed, computed), (unshared, _) = as_requests(True), as_requests(False)
    return Result(
        fork_blocks=at_fork,
        fork_copies=manager.num_copies,
        fork_end=manager.num_used_blocks,
        hashed_end=hashed,
        hashed_prompt_tokens=computed,
        unshared_end=unshared,
    )


@experiment("E09")
def beam_search(
    beams: int = arg(4, 1, 32),
    prompt: int = arg(100, 1, 4000),
    generated: int = arg(50, 0, 400),
    block_size: int = arg(16, 1, 128),
    parents: Literal["independent", "one_parent", "random"] = "independent",
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Run beam search over forked block tables and count shared blocks and copies (block manager of vLLM 0.6).

    Each step forks the surviving beams, drops the rest and appends a token to each. parents: which beams the next ones
    descend from: independent (each from itself), one_parent (all from the best) or random.

    Returns: Blocks and tokens for all beams.
        at_fork [blocks]
        copies [blocks]: Blocks copied on write in the whole search.
        first_step_copies, at_end [blocks]
        unshared [blocks]: Blocks in use if every beam had its own.
        saved_blocks [blocks]: unshared - at_end.
        saved [share]
        saved_at_fork [blocks]: Additional blocks that the prompt alone would need without sharing.
        slots_at_end [tokens]: Token slots of the blocks in use at the end.
    """
    manager = BlockSpaceManager(beams * ((prompt + generated) // block_size + 2) + beams, 0, block_size)
    live = [(0, beam) for beam in range(beams)]
    manager.allocate(live[0], prompt)
    for beam in live[1:]:
        manager.fork(live[0], beam)
    at_fork, first = manager.num_used_blocks, 0
    rng = Random(seed)
    for step in range(1, generated + 1):
        if parents != "independent" and step > 1:
            children = [(step, beam) for beam in range(beams)]
            for child in children:
                manager.fork(live[0 if parents == "one_parent" else rng.randrange(beams)], child)
            for beam in live:
                manager.free(beam)
            live = children
        for beam in live:
            manager.append_slot(beam)
        first = manager.num_copies if step == 1 else first
    at_end = manager.num_used_blocks
    unshared = beams * -(-(prompt + generated) // block_size)
    return Result(
        at_fork=at_fork,
        copies=manager.num_copies,
        first_step_copies=first,
        at_end=at_end,
        unshared=unshared,
        saved_blocks=unshared - at_end,
        saved=1 - at_end / unshared,
        saved_at_fork=beams * -(-prompt // block_size) - at_fork,
        slots_at_end=at_end * block_size,
    )


@experiment("E09")
def copy_on_write(
    sequences: int = arg(4, 1, 16),
    prompt: int = arg(20, 1, 2000),
    writers: list[int] = arg([0, 1, 2, 3], 0, 15, count=(1, 64)),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Find which sequences copy a shared block before they write.

    A prompt is forked into `sequences` sequences; then `writers` append one token each, in that order. A writer is a
    sequence's number from 0; numbers beyond the last sequence wrap round.

    Returns: One entry per write, in order.
        owners_before [sequences]: Tables that hold the writer's last block just before it writes.
        copied: Whether that block was copied first.
        opened: Whether the writer took an empty block instead, because its last one was full.
        copies [blocks]
        blocks_before, blocks_after [blocks]: Blocks in use after the fork and after the writes.
    """
    manager = BlockSpaceManager(sequences * (prompt + len(writers)), 0, block_size)
    manager.allocate(0, prompt)
    for child in range(1, sequences):
        manager.fork(0, child)
    before = manager.num_used_blocks
    owners, copied, opened = [], [], []
    for writer in (writer % sequences for writer in writers):
        tables = [manager.block_table(sequence) for sequence in range(sequences)]
        last = tables[writer][-1]
        owners.append(sum(last in table for table in tables))
        copied.append(manager.append_slot(writer) is not None)
        opened.append(len(manager.block_table(writer)) > len(tables[writer]))
    return Result(
        owners_before=owners,
        copied=copied,
        opened=opened,
        copies=manager.num_copies,
        blocks_before=before,
        blocks_after=manager.num_used_blocks,
    )
