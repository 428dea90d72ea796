from engine.core.hashing import BlockHasher
from engine.core.kv_events import KVEventFeed, MemoryPublisher, PrefixIndex
from engine.core.request import Request
from engine.core.router import PrefixRouter
from engine.sampling_params import SamplingParams
from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._tokens import Fresh

BLOCK = 16


@experiment("E47")
def kv_event_router(
    ctx: Context,
    replicas: int = arg(2, 1, 6),
    sessions: int = arg(6, 1, 24),
    blocks_each: int = arg(6, 1, 20),
    pool: int = arg(60, 24, 1000),
    rounds: int = arg(3, 1, 8),
    restart: bool = False,
) -> Result:
    """Compare a router that estimates the replicas' caches from its own requests with one that receives KV events.

    Sessions take turns; engine.core.router decides; each replica has `pool` blocks. restart: after the first round
    every replica loses its cache, as after a deploy. Only the router with KV events learns of it.

    Returns:
        Requests after the first round. Guessed: the estimating router; told: the one with KV events.
        guessed_by_prefix [requests]: Sent to a replica because its prefix was thought to be there.
        guessed_hits [requests]: Requests that found a block of their prefix.
        told_by_prefix, told_hits, requests [requests]
        event_batches [batches]: KV-event batches that the second router read.
    """
    pool = max(pool, blocks_each + 2)
    shape = (replicas, sessions, blocks_each, pool, rounds, restart)
    guessed, guessed_hits, _ = _serve(ctx, False, *shape)
    told, told_hits, batches = _serve(ctx, True, *shape)
    return Result(
        guessed_by_prefix=guessed,
        guessed_hits=guessed_hits,
        told_by_prefix=told,
        told_hits=told_hits,
        requests=sessions * rounds,
        event_batches=batches,
    )


def _serve(
    ctx: Context,
    told: bool,
    replicas: int,
    sessions: int,
    blocks_each: int,
    pool: int,
    rounds: int,
    restart: bool,
) -> tuple[int, int, int]:
    """(requests routed by prefix, hits, batches) after the first round."""
    fresh, hasher = Fresh(), BlockHasher(BLOCK)
    engines = [ctx.core(num_blocks=pool, block_size=BLOCK) for _ in range(replicas)]
    publishers = [MemoryPublisher(10_000) for _ in engines]
    indexes = [PrefixIndex() for _ in engines]
    feeds = [
        KVEventFeed(engine.scheduler, publisher, clock=lambda: 0.0)
        for engine, publisher in zip(engines, publishers, strict=True)
    ]
    router = PrefixRouter(replicas, indexes=indexes if told else None)
    prompts = [fresh(blocks_each * BLOCK + 1) for _ in range(sessions)]
    hits = batches = by_prefix_before = 0
    for turn in range(rounds + 1):
        if turn == 1:
            by_prefix_before = sum(router.num_by_prefix)
            for engine, feed in zip(engines, feeds, strict=True):
                if restart and engine.scheduler.reset_prefix_cache():
                    feed.reset()
        for session, prompt in enumerate(prompts):
            for publisher, index in zip(publishers, indexes, strict=True):
                for batch in publisher.take():
                    index.apply(batch)
                    batches += 1
            request = Request("hashes", prompt, SamplingParams(max_tokens=1))
            hasher.extend(request)
            replica = router.route(request.block_hashes)
            engine, name = engines[replica], f"s{session}t{turn}"
            engine.add(Ask(name, prompt, fresh(1)))
            while engine.scheduler.has_unfinished():
                engine.step()
                feeds[replica].step()
            router.finish(replica)
            hits += bool(turn) and engine.outcomes[name].cached_tokens > 0
    return sum(router.num_by_prefix) - by_prefix_before, hits, batches
