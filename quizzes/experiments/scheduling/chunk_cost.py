from engine.config import CacheConfig
from engine.sim.cost import CostModel, StepLoad
from engine.sim.engine import SimEngine
from engine.sim.run import scheduler_config
from engine.sim.workload import SimRequest
from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.scheduling._cluster import Gpu, Model, deployment


@experiment("E15", "E30")
def chunk_cost(
    ctx: Context,
    prompt: int = arg(8192, 16, 60_000),
    chunk: int = arg(512, 16, 60_000),
    model: Model = "llama-3.1-8b",
    gpu: Gpu = "h100",
) -> Result:
    """Price one prompt alone, whole or in chunks: passes over the weights, KV read again, time.

    The real scheduler makes the chunks; the cost model prices every step: linear layers by tokens, weights by passes,
    attention by the pairs and the KV that a chunk reads.

    Returns:
        Until the prompt's first token. Times are virtual (roofline of the datasheet).
        passes [passes]: Forward passes; each reads all weights once.
        whole_seconds, chunked_seconds [s]
        ratio [x]: Chunked over whole.
        pairs [pairs]: (query, key) pairs: the arithmetic of attention, the same however it is cut.
        whole_pairs [pairs]
        context_read [tokens]: Positions whose KV the chunks read, all chunks together.
        reread_factor [x]: KV reads over reading each position once.
        overhead_share [share]: Fixed costs of steps over the chunked time.
        last_chunk_over_first [x]: Time of the last full chunk over that of the first: later ones look back further.
    """
    whole = _serve(prompt, 65_536, model, gpu)
    cut = _serve(prompt, chunk, model, gpu)
    full = [seconds for load, seconds in cut if load.num_tokens == min(chunk, prompt)]
    cost = _cost(model, gpu)
    overhead = sum(cost.parts(load)["overhead"] for load, _ in cut)
    total = sum(seconds for _, seconds in cut)
    once = sum(seconds for _, seconds in whole)
    read = sum(load.prefill_context or load.decode_context for load, _ in cut)
    return Result(
        passes=len(cut),
        whole_seconds=once,
        chunked_seconds=total,
        ratio=total / once,
        pairs=sum(load.prefill_pairs or load.decode_context for load, _ in cut),
        whole_pairs=sum(load.prefill_pairs for load, _ in whole),
        context_read=read,
        reread_factor=read / prompt,
        overhead_share=overhead / total,
        last_chunk_over_first=full[-1] / full[0],
    )


def _serve(prompt: int, budget: int, model: Model, gpu: Gpu) -> list[tuple[StepLoad, float]]:
    """(load, seconds) of each step until the first token of a lone prompt."""
    steps: list[tuple[StepLoad, float]] = []
    replica = deployment(model, gpu, budget=budget, max_num_seqs=1)
    engine = SimEngine(
        scheduler_config(replica),
        CacheConfig(65_536 // 16 + 2, 16),
        _cost(model, gpu),
        on_step=lambda _, load, seconds: steps.append((load, seconds)),
    )
    engine.run([SimRequest(0, 0.0, prompt, 1)])
    return steps


def _cost(model: Model, gpu: Gpu) -> CostModel:
    return CostModel(deployment(model, gpu))
