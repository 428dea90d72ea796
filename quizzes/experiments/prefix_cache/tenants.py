"""Tenants of one cache: keys, salts, noisy neighbours."""

from collections import deque
from typing import Any, Literal

from engine.config import CacheConfig
from engine.core.kv_manager import KVManager
from engine.core.request import MultiModalFeature, Request
from engine.sampling_params import SamplingParams
from quizzes.experiments import Ask, Context, CoreEngine, Fresh, Result, arg, experiment
from quizzes.experiments.charts import vega


@experiment("E10")
def isolation_keys(
    prompt: int = arg(100, 20, 4000),
    image_at: int = arg(40, 0, 3990),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Check which of two requests with identical token ids may share KV when their adapter, salt, image or type
    differs.

    Both requests have `prompt` tokens; with images, 10 of them are placeholders from `image_at` on.

    Returns: Tokens of the second request's hit on the first one's blocks, by the difference between the two.
        nothing [tokens]: Two users, the same prompt, no salt.
        sampling [tokens]: Another temperature and another seed.
        salt [tokens]
        same_salt [tokens]: Both carry the same salt.
        adapter [tokens]: An adapter against the base model.
        same_adapter [tokens]
        reloaded_adapter [tokens]: An adapter of the same name that was loaded anew from changed files.
        image [tokens]: Another image with the same placeholder tokens, at `image_at`.
        model [tokens]: Other weights, in a store that both engines use.
        kv_dtype [tokens]: The same weights with an FP8 KV cache, in a store that both engines use.
    """
    image_at = min(image_at, prompt - 10)

    def request(name: str, temperature: float = 0.0, seed: int | None = None, **identity: Any) -> Request:
        params = SamplingParams(temperature=temperature, seed=seed, max_tokens=1)
        return Request(name, list(range(prompt)), params, **identity)

    def manager(model_fingerprint: str = "v1", **cache: Any) -> KVManager:
        config = CacheConfig(2 * (prompt // block_size + 2), block_size, **cache)
        return KVManager(config, model_fingerprint=model_fingerprint)

    def hit(first: dict[str, Any], second: dict[str, Any]) -> int:
        """Return the second request's hit after the first has finished, on one engine."""
        kv, done, asking = manager(), request("first", **first), request("second", **second)
        kv.add(done)
        kv.admit(done, kv.match(done), prompt)
        done.num_computed_tokens = prompt
        kv.publish(done)
        kv.free(done)
        kv.add(asking)
        return kv.match(asking).num_blocks * block_size

    def common(first: dict[str, Any], second: dict[str, Any]) -> int:
        """Return the tokens of the second engine's hashes that a store with the first engine's blocks holds."""
        requests = [request("stored"), request("asking")]
        for settings, its_request in zip((first, second), requests, strict=True):
            manager(**settings).add(its_request)
        stored = set(requests[0].block_hashes)
        return sum(block_hash in stored for block_hash in requests[1].block_hashes) * block_size

    def image(content: str) -> dict[str, Any]:
        return {"mm_features": [MultiModalFeature(content, image_at, 10, None)]}

    return Result(
        nothing=hit({}, {}),
        sampling=hit({"temperature": 0.0}, {"temperature": 1.0, "seed": 7}),
        salt=hit({"cache_salt": "tenant-a"}, {"cache_salt": "tenant-b"}),
        same_salt=hit({"cache_salt": "tenant-a"}, {"cache_salt": "tenant-a"}),
        adapter=hit({"lora_key": "shop-lora#1"}, {}),
        same_adapter=hit({"lora_key": "shop-lora#1"}, {"lora_key": "shop-lora#1"}),
        reloaded_adapter=hit({"lora_key": "shop-lora#1"}, {"lora_key": "shop-lora#2"}),
        image=hit(image("cover-a"), image("cover-b")),
        model=common({"model_fingerprint": "v1"}, {"model_fingerprint": "v2"}),
        kv_dtype=common({"kv_cache_dtype": "auto"}, {"kv_cache_dtype": "fp8"}),
    )


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

    Returns: All tenants' requests, without a salt and with one per tenant.
        shared_hit_rate, salted_hit_rate [share]; shared_computed, salted_computed [tokens]
        shared_cached_blocks, salted_cached_blocks [blocks]: Blocks with content that can be hit, at the end.
        probe_hit_shared, probe_hit_salted [tokens]: Hit of a new tenant with the first tenant's prompt: a short TTFT.
    """
    field = {"salt": "cache_salt", "adapter": "lora"}[key]

    def serve(apart: bool) -> tuple[CoreEngine, int]:
        """Return the engine after the probe, and the probe's hit."""
        fresh = Fresh()
        instructions = fresh(system)
        engine = ctx.core(
            block_size=block_size,
            num_blocks=(tenants * requests + 2) * ((system + own) // block_size + 2),
            max_num_batched_tokens=system + own,
            traced=apart,
        )

        def ask(name: str, prompt: list[int], tenant: str) -> Ask:
            identity: dict[str, Any] = {field: tenant} if apart else {}
            return Ask(name, prompt, fresh(1), **identity)

        prompts = [instructions + fresh(own) for _ in range(requests * tenants)]
        for index, prompt in enumerate(prompts):
            engine.run([ask(f"r{index}", prompt, f"tenant-{index % tenants}")])
        probe = engine.add(ask("probe", prompts[0], "probe"))
        hit = engine.scheduler.kv.match(probe).num_blocks * block_size
        engine.abort("probe")
        engine.close()
        return engine, hit

    total = tenants * requests * (system + own)
    runs = {"shared": serve(False), "salted": serve(True)}
    return Result(
        **{f"{name}_hit_rate": 1 - engine.computed_tokens / total for name, (engine, _) in runs.items()},
        **{f"{name}_computed": engine.computed_tokens for name, (engine, _) in runs.items()},
        **{
            f"{name}_cached_blocks": engine.scheduler.kv.pool.num_evictable
            for name, (engine, _) in runs.items()
        },
        **{f"probe_hit_{name}": hit for name, (_, hit) in runs.items()},
    )


BLOCK = 16


class TokenQuota:
    """Admits at most `tokens` prompt tokens of a tenant per round; the rest waits for the next round."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._waiting: deque[list[int]] = deque()

    def offer(self, prompt: list[int]) -> None:
        self._waiting.append(prompt)

    def admit(self) -> list[list[int]]:
        """Return the prompts admitted in this round, oldest first."""
        left, admitted = self.tokens, []
        while self._waiting and len(self._waiting[0]) <= left:
            prompt = self._waiting.popleft()
            left -= len(prompt)
            admitted.append(prompt)
        return admitted

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)


@experiment("E23")
def noisy_neighbour(
    ctx: Context,
    sessions: int = arg(4, 1, 12),
    session_blocks: int = arg(5, 1, 20),
    documents: int = arg(4, 0, 12),
    document_blocks: int = arg(10, 1, 40),
    pool: int = arg(60, 24, 1000),
    rounds: int = arg(5, 2, 12),
) -> Result:
    """Measure the hits that one tenant loses to another tenant's document scan, and compare remedies.

    In each round every chat session asks again with the same history, then the scanner sends `documents` new
    documents. Sizes in blocks of 16 tokens; chat prompts end in one more token. Hit rates count full blocks.

    Returns: Hit rate of the chat tenant after the first round, by remedy.
        alone [share]: Without the scan.
        shared [share]: One pool, no measures.
        salted [share]: One pool, a salt per tenant.
        quota [share]: One pool; the gateway lets one document per round in.
        partitioned [share]: Two engines with half the blocks each.
        quota_backlog [documents]: Still waiting at the gateway at the end: the scanner's price of the quota.
        evictions_shared [blocks]
    """
    pool = max(pool, 2 * max(session_blocks, document_blocks) + 4)

    def engine(blocks: int = pool, traced: bool = False) -> CoreEngine:
        return ctx.core(num_blocks=blocks, block_size=BLOCK, traced=traced)

    def play(
        chat: CoreEngine,
        scanner: CoreEngine,
        scans: int = documents,
        salts: tuple[str | None, str | None] = (None, None),
        gate: TokenQuota | None = None,
    ) -> float:
        """Return the chat tenant's hit rate from the second round on."""
        fresh = Fresh()
        histories = [fresh(session_blocks * BLOCK + 1) for _ in range(sessions)]
        gate = gate or TokenQuota(scans * document_blocks * BLOCK)
        sent = hits = 0
        for turn in range(rounds):
            for index, history in enumerate(histories):
                name = f"chat{index}.{turn}"
                chat.run([Ask(name, history, fresh(1), cache_salt=salts[0])])
                hits += chat.outcomes[name].cached_tokens if turn else 0
            for _ in range(scans):
                gate.offer(fresh(document_blocks * BLOCK))
            for document in gate.admit():
                scanner.run([Ask(f"scan{sent}", document, fresh(1), cache_salt=salts[1])])
                sent += 1
        return hits / ((rounds - 1) * sessions * session_blocks * BLOCK)

    common, alone, salted, limited = engine(traced=True), engine(), engine(), engine()
    quota = TokenQuota(document_blocks * BLOCK)
    return Result(
        shared=play(common, common),
        alone=play(alone, alone, scans=0),
        salted=play(salted, salted, salts=("chat", "scan")),
        quota=play(limited, limited, gate=quota),
        partitioned=play(engine(pool // 2), engine(pool // 2)),
        quota_backlog=quota.num_waiting,
        evictions_shared=common.scheduler.kv.pool.num_evictions,
    )


def noisy_neighbour_chart(result: Result) -> dict[str, Any]:
    """The chat's hit rate by measure."""
    names = ("alone", "shared", "salted", "quota", "partitioned")
    return vega(
        {"measure": names, "hit rate": [getattr(result, name) for name in names]},
        "bar",
        x=("measure:N", {"sort": list(names)}),
        y=("hit rate:Q", {"scale": {"domain": [0, 1]}}),
    )
