"""Random workloads for the core, and the output of each request when it runs alone."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from engine.config import CacheConfig, SchedulerConfig, TierConfig
from engine.core.request import Request
from engine.sampling_params import SamplingParams

VOCAB = 30
EOS = 7
STOP_ID = 11
Digest = int

# -- the model: a token stream that depends on every token before it and on nothing else


def root_digest(lora_key: str | None, cache_salt: str | None) -> Digest:
    return zlib.crc32(repr((lora_key, cache_salt)).encode())


def extend_digest(digest: Digest, token_id: int) -> Digest:
    return hash((digest, token_id))  # of integers: the same in every process


def next_token(digest: Digest) -> int:
    return digest % 1_000_003 % VOCAB


# -- workloads


@dataclass
class Ask:
    """A request of a workload."""

    request_id: str
    step: int
    prompt: list[int]
    max_tokens: int | None = 8
    priority: int = 0
    arrival: float = 0.0
    lora_key: str | None = None
    cache_salt: str | None = None
    eos: bool = True
    ignore_eos: bool = False
    stop_ids: list[int] | None = None
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    skip_reading: bool | None = None
    compile_steps: int | None = None
    """Steps until its grammar is ready; None: it has none."""
    compile_fails: bool = False

    def make(self) -> Request:
        params = SamplingParams(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            stop_token_ids=self.stop_ids,
            prompt_logprobs=self.prompt_logprobs,
            skip_reading_prefix_cache=self.skip_reading,
        )
        return Request(
            self.request_id,
            self.prompt,
            params,
            arrival_time=self.arrival,
            priority=self.priority,
            eos_token_ids=frozenset({EOS} if self.eos else ()),
            lora_key=self.lora_key,
            cache_salt=self.cache_salt,
        )


Moment = Literal["before", "in_flight", "error", "after"]


@dataclass
class Abort:
    """End a request at a step: before it is planned, while it is in flight, or after its update.

    `error` lets the worker report that the request cannot go on, if the step has a row for it.
    """

    request_id: str
    step: int
    moment: Moment
    again: bool = False
    """Add a new request with the same id at once."""


@dataclass
class Workload:
    """Everything that determines a run. Its repr is the call that makes it again."""

    scheduler: SchedulerConfig
    cache: CacheConfig
    asks: list[Ask]
    aborts: list[Abort] = field(default_factory=list)
    interrupts: list[int] = field(default_factory=list)
    """Steps that are planned and never run, as by Ctrl-C: all requests end, and the core goes on."""
    draft_length: int = 0
    draft_quality: float = 0.7
    """Chance that a draft token is the right one."""
    seed: int = 0

    @staticmethod
    def random(seed: int) -> Workload:
        rng = random.Random(seed)
        cache = CacheConfig(
            num_blocks=rng.randint(5, 40),
            block_size=rng.choice([1, 2, 4, 4, 8]),
            enable_prefix_caching=rng.random() < 0.85,
        )
        scheduler = _random_limits(rng)
        asks = _with_grammars(random.Random(~seed), list(_random_asks(rng, scheduler, cache)))
        aborts = [
            Abort(
                rng.choice(asks).request_id,
                step=rng.randint(0, 40),
                moment=rng.choice(["before", "in_flight", "error", "after"]),
                again=rng.random() < 0.3,
            )
            for _ in range(rng.choice([0, 0, 1, 3, 6]))
        ]
        draft_length, draft_quality = rng.choice([0, 0, 1, 3, 5]), rng.choice([0.3, 0.8, 1.0])
        cache = replace(cache, sliding_window=rng.choice([None, None, None, 1, 3, 6, 11]))
        cache = replace(cache, tiers=_random_tiers(rng, cache))
        interrupts = [rng.randint(1, 15)] if rng.random() < 0.25 else []
        admission = random.Random(f"admission-{seed}")
        cache = replace(cache, watermark=admission.choice([0.0] * 6 + [0.1, 0.4]))
        scheduler = replace(scheduler, scheduler_reserve_full_isl=admission.random() < 0.85)
        scheduler = replace(scheduler, max_loras=rng.choice([0, 0, 0, 1, 2]))
        if scheduler.max_loras:
            asks = [replace(ask, lora_key=rng.choice([ask.lora_key, "b", "c"])) for ask in asks]
        if draft_length:  # drafters with KV of their own ask for more
            scheduler = replace(scheduler, num_lookahead_tokens=rng.choice([0, draft_length]))
            cache = replace(cache, drop_last_hit_block=rng.random() < 0.3)
        return Workload(scheduler, cache, asks, aborts, interrupts, draft_length, draft_quality, seed)

    @staticmethod
    def tight(seed: int) -> Workload:
        """Four blocks of 32 for two rows, 33 tokens a step: the less important request is swapped out."""
        rng = random.Random(seed)
        tiers = TierConfig(rng.choice([1, 2, 4, 20]), swap=True, offload=rng.random() < 0.3)
        cache = CacheConfig(5, 32, enable_prefix_caching=rng.random() < 0.85 or tiers.offload, tiers=tiers)
        drafts = rng.choice([0, 0, 3])
        scheduler = SchedulerConfig(
            max_num_batched_tokens=33,
            max_num_seqs=2,
            max_model_len=120,
            policy="priority",
            max_loras=rng.choice([0, 0, 1, 2]),
            num_lookahead_tokens=rng.choice([0, drafts]),
        )
        asks = _with_grammars(rng, list(_random_asks(rng, scheduler, cache)), share=0.5)
        moments: list[Moment] = ["before", "in_flight", "error", "after"]
        aborts = [
            Abort(rng.choice(asks).request_id, rng.randint(0, 60), rng.choice(moments), rng.random() < 0.3)
            for _ in range(rng.choice([0, 1, 3]))
        ]
        return Workload(scheduler, cache, asks, aborts, draft_length=drafts, seed=seed)


def _with_grammars(rng: random.Random, asks: list[Ask], share: float = 0.2) -> list[Ask]:
    """Some of the requests have a grammar; it compiles for a while, or fails to."""
    return [
        replace(ask, compile_steps=rng.choice([0, 1, 3, 12]), compile_fails=rng.random() < 0.15)
        if rng.random() < share
        else ask
        for ask in asks
    ]


def _random_tiers(rng: random.Random, cache: CacheConfig) -> TierConfig:
    """Host memory for two in five workloads: often less than a victim has."""
    swap = rng.random() < 0.75
    offload = cache.enable_prefix_caching and rng.random() < 0.6
    if cache.sliding_window is not None or rng.random() < 0.2 or not (swap or offload):
        return TierConfig()
    return TierConfig(num_host_blocks=rng.choice([1, 2, 4, 8, 30]), swap=swap, offload=offload)


def _random_limits(rng: random.Random) -> SchedulerConfig:
    max_model_len = rng.choice([1000, 1000, 60, 24])
    chunked = rng.random() < 0.85
    return SchedulerConfig(
        max_num_batched_tokens=rng.choice([3, 8, 16, 64]) if chunked else max_model_len + rng.choice([0, 8]),
        max_num_seqs=rng.choice([1, 2, 4, 8, 8]),
        max_model_len=max_model_len,
        policy=rng.choice(["fcfs", "priority"]),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=rng.choice([0, 0, 1, 4]) if chunked else 0,
    )


def _random_asks(rng: random.Random, scheduler: SchedulerConfig, cache: CacheConfig) -> Iterator[Ask]:
    capacity = (cache.num_blocks - 1) * cache.block_size
    longest = max(1, min(60, capacity * 2 // 3, scheduler.max_model_len))
    shared = [rng.randrange(VOCAB) for _ in range(longest)]
    tenants = [(None, None), (None, None), ("a", None), (None, "a"), ("a", "a")]
    for index in range(rng.randint(2, 12)):
        length = rng.randint(1, longest)
        if rng.random() < 0.3:  # where off-by-one errors live
            length = max(1, length // cache.block_size * cache.block_size)
        if rng.random() < 0.03:
            length = rng.choice([0, scheduler.max_model_len, capacity + 1])
        prompt = shared[: length if rng.random() < 0.3 else rng.randint(0, length)]
        prompt += [rng.randrange(VOCAB) for _ in range(length - len(prompt))]
        lora_key, cache_salt = rng.choice(tenants)
        max_tokens = max(1, min(rng.randint(1, 30), capacity - length + rng.choice([1, 1, 1, 2])))
        yield Ask(
            request_id=f"r{index}",
            step=rng.choice([0, 0, rng.randint(0, 20)]),
            prompt=prompt,
            max_tokens=None if scheduler.max_model_len < capacity and rng.random() < 0.3 else max_tokens,
            priority=rng.choice([0, 0, 1, 2]),
            arrival=float(rng.choice([0, index])),
            lora_key=lora_key,
            cache_salt=cache_salt,
            eos=rng.random() < 0.5,
            ignore_eos=rng.random() < 0.2,
            stop_ids=[STOP_ID, EOS] if rng.random() < 0.2 else None,
            min_tokens=rng.choice([0, 0, 0, min(3, max_tokens)]),
            prompt_logprobs=1 if rng.random() < 0.2 else None,
            skip_reading=rng.choice([None, None, None, False, True]),
        )


@dataclass
class Expected:
    """Result of generating a request alone, computed without the core."""

    rejected: bool
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""
    stop_reason: int | None = None


def _blocks_at_once(num_slots: int, scheduler: SchedulerConfig, cache: CacheConfig) -> int:
    """Most blocks that a step reads or writes for a sequence, by trying every place where a step can begin."""
    size, window = cache.block_size, cache.sliding_window
    if window is None:
        return -(-num_slots // size)
    chunk = scheduler.max_num_batched_tokens
    return max(
        (min(start + chunk, num_slots) - 1) // size - max(0, start - window + 1) // size + 1
        for start in range(num_slots)
    )


def generate_alone(ask: Ask, scheduler: SchedulerConfig, cache: CacheConfig) -> Expected:
    room = scheduler.max_model_len - len(ask.prompt)
    longest = room if ask.max_tokens is None else min(ask.max_tokens, room)
    if (
        not ask.prompt
        or room <= 0
        or _blocks_at_once(len(ask.prompt) + longest - 1, scheduler, cache) >= cache.num_blocks
    ):
        return Expected(rejected=True)
    digest = root_digest(ask.lora_key, ask.cache_salt)
    for token_id in ask.prompt:
        digest = extend_digest(digest, token_id)
    output: list[int] = []
    while len(output) < longest:
        token_id = next_token(digest)
        digest = extend_digest(digest, token_id)
        output.append(token_id)
        if len(output) < ask.min_tokens:
            continue
        if ask.eos and token_id == EOS and not ask.ignore_eos:
            return Expected(False, output, "stop")
        if ask.stop_ids and token_id in ask.stop_ids:
            return Expected(False, output, "stop", token_id)
    return Expected(False, output, "length")
