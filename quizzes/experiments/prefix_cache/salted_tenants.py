from typing import Any, Literal

from quizzes.experiments import Ask, Context, CoreEngine, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh


@experiment("E10", "E23")
def salted_tenants(
    ctx: Context,
    tenants: int = arg(4, 1, 20),
    requests: int = arg(3, 1, 20),
    system: int = arg(400, 1, 4000),
    own: int = arg(50, 1, 400),
    block_size: int = arg(16, 1, 128),
    key: Literal["salt", "adapter"] = "salt",
) -> Result:
    """Measure what isolating tenants with a cache salt costs: every tenant computes the system prompt again.

    Tenants with a common system prompt send `requests` prompts each, in turn; then a request of a new tenant probes
    the cache. Every prompt is the system prompt and `own` unique tokens. Nothing is evicted. key: what separates the
    groups, a salt per tenant or a LoRA adapter per group.

    Returns:
        All tenants' requests, without a salt and with one per tenant.
        shared_hit_rate, salted_hit_rate [share]
        shared_computed, salted_computed [tokens]
        shared_cached_blocks, salted_cached_blocks [blocks]: Blocks with content that can be hit, at the end.
        probe_hit_shared, probe_hit_salted [tokens]: Hit of a new tenant that sends the first tenant's prompt; it shows
            as a short TTFT.
    """
    shape = (tenants, requests, system, own, block_size)
    shared, probe_shared = _serve(ctx, None, *shape)
    salted, probe_salted = _serve(ctx, key, *shape)
    total = tenants * requests * (system + own)
    computed_shared, computed_salted = _computed(shared), _computed(salted)
    return Result(
        shared_hit_rate=1 - computed_shared / total,
        salted_hit_rate=1 - computed_salted / total,
        shared_computed=computed_shared,
        salted_computed=computed_salted,
        shared_cached_blocks=shared.scheduler.kv.pool.num_evictable,
        salted_cached_blocks=salted.scheduler.kv.pool.num_evictable,
        probe_hit_shared=probe_shared,
        probe_hit_salted=probe_salted,
    )


def _serve(
    ctx: Context, key: str | None, tenants: int, requests: int, system: int, own: int, block_size: int
) -> tuple[CoreEngine, int]:
    """Return the engine before the probe, and the probe's hit."""
    fresh = Fresh()
    instructions = fresh(system)
    engine = ctx.core(
        block_size=block_size,
        num_blocks=(tenants * requests + 2) * ((system + own) // block_size + 2),
        max_num_batched_tokens=system + own,
        traced=key is not None,
    )
    first: list[int] = []
    for turn in range(requests):
        for tenant in range(tenants):
            prompt = instructions + fresh(own)
            first = first or prompt
            engine.run([Ask(f"t{tenant}r{turn}", prompt, fresh(1), **_identity(key, f"tenant-{tenant}"))])
    probe = engine.add(Ask("probe", first, fresh(1), **_identity(key, "probe")))
    hit = engine.scheduler.kv.match(probe).num_blocks * block_size
    engine.abort("probe")
    engine.close()
    return engine, hit


def _computed(engine: CoreEngine) -> int:
    return sum(outcome.computed_tokens for outcome in engine.outcomes.values())


def _identity(key: str | None, who: str) -> dict[str, Any]:
    return {"salt": {"cache_salt": who}, "adapter": {"lora": who}}.get(key or "", {})
