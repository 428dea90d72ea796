from common.text import GIB
from engine.core.errors import RequestRejected
from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment, plan_memory
from engine.sim.models import get_model
from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E53")
def tail_context(
    ctx: Context,
    utilization: float = arg(0.95, above=0.3, high=1),
    model: str = "llama-3.1-8b",
    gpu: str = "h100",
    chats: int = arg(20, 0, 64),
    tail_prompt: int = arg(30_000, 1, 120_000),
    budget: int = arg(2048, 64, 16_384),
    num_blocks: int = arg(2500, 10, 20_000),
) -> Result:
    """Check whether one long request can make a step exceed the peak measured at start: tokens, rows, blocks.

    `chats` ordinary requests and one with a very long prompt share a pool of `num_blocks` blocks of 16 tokens.

    Returns:
        Activations grow with the tokens of a step, KV with the blocks in use; both limits are set at start.
        peak_step_tokens, budget [tokens]
        peak_blocks, num_blocks [blocks]
        num_preemptions
        finished, rejected [requests]
        over_bounds: A step held more tokens than its budget, or the pool gave more blocks than it has.
        kv_gib [GiB]: KV pool on a real card at this gpu_memory_utilization.
        outside_gib [GiB]: Memory of the card left to other processes, fragmentation and unprofiled allocations.
    """
    card = get_hardware(gpu)
    plan = plan_memory(
        Deployment(get_model(model), card, gpu_memory_utilization=utilization, max_num_batched_tokens=budget)
    )
    engine = ctx.core(
        num_blocks=num_blocks, max_num_batched_tokens=budget, enable_prefix_caching=False, traced=True
    )
    rejected = 0
    for ask in [*(Ask(f"chat{i}", 800, 60) for i in range(chats)), Ask("tail", tail_prompt, 60)]:
        try:
            engine.add(ask)
        except RequestRejected:
            rejected += 1
    engine.run()
    peak_tokens = max((step.num_tokens for step in engine.steps), default=0)
    peak_blocks = num_blocks - min((step.free_blocks for step in engine.steps), default=num_blocks)
    return Result(
        peak_step_tokens=peak_tokens,
        budget=budget,
        peak_blocks=peak_blocks,
        num_blocks=num_blocks,
        num_preemptions=engine.num_preemptions,
        finished=sum(o.finished is not None for o in engine.outcomes.values()),
        rejected=rejected,
        over_bounds=peak_tokens > budget or peak_blocks > num_blocks,
        kv_gib=plan.kv_budget / GIB,
        outside_gib=(plan.total - plan.usable) / GIB,
    )
