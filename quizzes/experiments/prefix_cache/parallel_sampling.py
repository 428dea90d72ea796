from engine.core.blocks import Block, BlockEvent, add_listener
from engine.frontend.block_space_manager import BlockSpaceManager
from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh


@experiment("E09")
def parallel_sampling(
    ctx: Context,
    samples: int = arg(4, 1, 64),
    prompt: int = arg(100, 1, 4000),
    generated: int = arg(50, 1, 400),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Count the blocks of n samples of one prompt: forked tables with copy-on-write, and requests with hashed blocks.

    Each sample writes KV of `generated` tokens. fork: engine.frontend.block_space_manager, the design of vLLM 0.6.
    hashed: the engine's scheduler with its prefix cache, where samples are requests with the same prompt, as in vLLM
    V1.

    Returns:
        Blocks on the device for n samples, each of `generated` tokens after the same prompt.
        fork_blocks [blocks]: Fork: in use when all samples exist and none has written.
        fork_copies [blocks]: Fork: blocks copied on write until the end.
        fork_end [blocks]: Fork: in use at the end.
        hashed_end [blocks]: Prefix cache: different blocks that were taken for the n requests; nothing is ever copied
            there.
        hashed_prompt_tokens [tokens]: Prefix cache: prompt tokens computed for all samples together.
        unshared_end [blocks]: Neither: n tables of their own.
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

    hashed, computed = _as_requests(ctx, True, samples, prompt, generated, block_size, most)
    unshared, _ = _as_requests(ctx, False, samples, prompt, generated, block_size, most)
    return Result(
        fork_blocks=at_fork,
        fork_copies=manager.num_copies,
        fork_end=manager.num_used_blocks,
        hashed_end=hashed,
        hashed_prompt_tokens=computed,
        unshared_end=unshared,
    )


def _as_requests(
    ctx: Context, caching: bool, samples: int, prompt: int, generated: int, block_size: int, most: int
) -> tuple[int, int]:
    """(blocks taken, prompt tokens computed). The last token of an answer is never written, so each has one more."""
    fresh = Fresh()
    tokens = fresh(prompt)
    engine = ctx.core(
        block_size=block_size,
        num_blocks=2 * most,
        max_num_batched_tokens=samples * prompt,
        enable_prefix_caching=caching,
        traced=caching,
    )
    taken: list[int] = []

    def watch(kind: BlockEvent, block: Block, request_id: str | None) -> None:
        if kind == "alloc":
            taken.append(block.block_id)

    add_listener(engine.scheduler.kv.pool, watch)
    engine.run([Ask(f"s{i}", tokens, fresh(generated + 1)) for i in range(samples)])
    computed = sum(outcome.computed_tokens for outcome in engine.outcomes.values())
    return len(taken), computed - samples * generated
