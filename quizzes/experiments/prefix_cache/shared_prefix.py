from engine.core.blocks import Block, BlockEvent, add_listener
from quizzes.experiments import Ask, Context, CoreEngine, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh


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
    """Serve requests with a common prefix, at once or one after the other: hits, blocks, and where each one writes.

    Prompts share their first `shared` tokens and have `own` unique tokens each. together: all arrive before the first
    step. Otherwise each comes when the one before has finished.

    Returns:
        The same requests with and without the prefix cache.
        cached_tokens [tokens]: Hit tokens by request, in order of arrival.
        prefill_tokens, prefill_without [tokens]: Prompt tokens computed, with the cache and without.
        prefill_saved [share]
        blocks, blocks_without [blocks]: Maximum blocks in use, with the cache and without.
        memory_saved [share]
        writes_to_shared [blocks]: Writes into a block that another request had in its table, which copy-on-write would
            copy.
    """
    on = _serve(ctx, True, requests, shared, own, output, block_size, together)
    off = _serve(ctx, False, requests, shared, own, output, block_size, together)
    total = requests * (shared + own)
    cached = [on.engine.outcomes[f"r{i}"].cached_tokens for i in range(requests)]
    return Result(
        cached_tokens=cached,
        prefill_tokens=total - sum(cached),
        prefill_without=total,
        prefill_saved=sum(cached) / total,
        blocks=on.peak,
        blocks_without=off.peak,
        memory_saved=1 - on.peak / off.peak,
        writes_to_shared=on.writes_to_shared,
    )


class _Served:
    """An engine with counters of its peak and of writes to shared blocks."""

    def __init__(self, engine: CoreEngine) -> None:
        self.engine = engine
        self.peak = 0
        self.writes_to_shared = 0
        self._pool = engine.scheduler.kv.pool
        add_listener(self._pool, self._on_event)

    def run(self) -> None:
        size = self.engine.scheduler.kv.block_size
        while self.engine.scheduler.has_unfinished():
            for request_id, (start, count) in self.engine.step().rows.items():
                request = self.engine.scheduler.requests.get(request_id)
                if request is not None:
                    written = request.blocks[start // size : (start + count - 1) // size + 1]
                    self.writes_to_shared += sum(block.ref_count > 1 for block in written)

    def _on_event(self, kind: BlockEvent, block: Block, request_id: str | None) -> None:
        if kind == "alloc":
            self.peak = max(self.peak, self._pool.num_used)


def _serve(
    ctx: Context,
    caching: bool,
    requests: int,
    shared: int,
    own: int,
    output: int,
    block_size: int,
    together: bool,
) -> _Served:
    fresh = Fresh()
    beginning = fresh(shared)
    asks = [Ask(f"r{i}", beginning + fresh(own), fresh(output)) for i in range(requests)]
    engine = ctx.core(
        block_size=block_size,
        num_blocks=requests * ((shared + own + output) // block_size + 2),
        max_num_batched_tokens=requests * (shared + own),
        enable_prefix_caching=caching,
        traced=caching,
    )
    served = _Served(engine)
    for ask in asks:
        engine.add(ask)
        if not together:
            served.run()
    served.run()
    engine.close()
    return served
