from engine.core.blocks import Block, BlockEvent, add_listener
from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh


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
    last request takes `take` blocks. Every prompt is one token longer than its full blocks; the pool just holds all
    chains.

    Returns:
        Chains are called a, b, c ... in order of arrival; a1 is the first block of chain a.
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
    kv = engine.scheduler.kv
    name_of: dict[bytes, str] = {}
    order: list[str] = []

    def watch(kind: BlockEvent, block: Block, request_id: str | None) -> None:
        if kind == "evict" and block.block_hash is not None:
            order.append(name_of[block.block_hash])

    hashes: list[list[bytes]] = []
    for index, prompt in enumerate(prompts):
        request = engine.add(Ask(f"chain{index}", prompt, fresh(1)))
        hashes.append(list(request.block_hashes))
        for number, block_hash in enumerate(hashes[-1], 1):
            name_of[block_hash] = f"{chr(ord('a') + index)}{number}"
        engine.run()
    for turn, index in enumerate(index for index in touched if index < len(chains)):
        engine.run([Ask(f"again{turn}", prompts[index], fresh(1))])
    free, cached = engine.free_blocks, kv.pool.num_evictable
    add_listener(kv.pool, watch)
    if take:
        take = min(take, sum(chains) + 1)
        engine.run([Ask("last", fresh(take * block_size), fresh(1))])
    left = [_reachable(chain, kv.pool.cached) for chain in hashes]
    return Result(order=order, left=left, free_before=free, cached_before=cached)


def _reachable(chain: list[bytes], cached: dict[bytes, Block]) -> int:
    for index, block_hash in enumerate(chain):
        if block_hash not in cached:
            return index
    return len(chain)
