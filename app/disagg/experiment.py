"""E45: does it help those who wait for their next token that prompts are computed elsewhere?

Two processes each time, the same requests, greedy. Some requests write long answers all the while; meanwhile long
prompts arrive, one after the other. In a plain engine a step that computes a prompt is a step that those who write
wait for. What is exact on any machine: the tokens are the same, and the bytes moved are those of the formula
2 x layers x kv heads x head dim x bytes per value, for every token in a full block. What is measured: time to first
token of the prompts, time between tokens of the writers.
Source: DistServe (OSDI 2024), sections 2.3 and 3.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from random import Random
from tempfile import gettempdir
from typing import Any

from app.bench.timing import Spread, Tell, spread
from app.disagg.engine_process import TOTALS, Ask, EngineProcess, News, Ready
from app.disagg.routers import CoLocated, Disaggregated, Router

SILENCE_S = 120.0
"""If no engine says anything for so long, the run has failed."""


@dataclass(frozen=True)
class Load:
    """What the two sides are asked to do."""

    num_writers: int
    num_prompts: int
    prompt_len: int
    output_len: int
    """Of the writers; who brings a long prompt gets 4 tokens."""
    interval_s: float
    """Between two long prompts."""
    seed: int = 0

    def asks(self, vocab_size: int) -> list[tuple[float, Ask]]:
        """(when, what): the writers at once, then the prompts."""
        rng = Random(self.seed)

        def tokens(count: int) -> list[int]:
            return [rng.randrange(10, vocab_size) for _ in range(count)]

        writers = [(0.0, Ask(f"writer-{i}", tokens(32), self.output_len)) for i in range(self.num_writers)]
        prompts = [
            ((i + 1) * self.interval_s, Ask(f"prompt-{i}", tokens(self.prompt_len), 4))
            for i in range(self.num_prompts)
        ]
        return [*writers, *prompts]


@dataclass
class Side:
    """What one arrangement gave."""

    ttft_ms: Spread
    """Of the long prompts."""
    itl_ms: Spread
    """Between the writers' tokens, while prompts were still coming or being computed."""
    pause_ms: Spread
    """For each long prompt, the longest that any writer waited for a token while it was computed."""
    tokens: dict[str, list[int]] = field(repr=False, default_factory=dict)
    counters: list[dict[str, int]] = field(default_factory=list)
    """Of each engine: those of its counters that are not zero."""


@dataclass
class Report:
    model: str
    transport: str
    kv_bytes_per_token: int
    num_tokens_moved: int
    """What the formula counts: prompt tokens in full blocks. The last token is computed where it is answered, so a
    prompt that ends with a block does without that one."""
    bytes_expected: int
    bytes_sent: int
    bytes_offered: int
    """By the formula for what was sent: shared memory gets every full block, a socket those asked for."""
    bytes_received: int
    load_failures: int
    same_tokens: bool
    colocated: Side
    disaggregated: Side

    @property
    def bytes_are_exact(self) -> bool:
        as_expected = (self.bytes_received, self.bytes_sent) == (self.bytes_expected, self.bytes_offered)
        return as_expected and not self.load_failures

    @property
    def removes_interference(self) -> bool:
        return self.disaggregated.pause_ms.p50 < self.colocated.pause_ms.p50


def measure(tell: Tell, engine_args: dict[str, Any], transport: str, load: Load) -> Report:
    """Run both arrangements, one after the other."""
    tell("co-located: starting two engines")
    with running([engine_args, engine_args]) as engines:
        ready = [engine.receive() for engine in engines]
        check_fits(load, ready[0])
        colocated = run(tell, CoLocated(engines), load, ready[0])
    tell("disaggregated: starting a prefill and a decode engine")
    with transfer_configs(transport) as configs:
        with running([{**engine_args, "kv_transfer_config": config} for config in configs]) as engines:
            ready = [engine.receive() for engine in engines]
            disaggregated = run(tell, Disaggregated(engines), load, ready[0])
    prefill, decode = disaggregated.counters
    per_token, block_size = ready[0].kv_bytes_per_token, ready[0].block_size
    lengths = [len(ask.prompt) for _, ask in load.asks(ready[0].vocab_size)]
    num_tokens = sum((length - 1) // block_size * block_size for length in lengths)
    num_full = sum(length // block_size * block_size for length in lengths)
    return Report(
        model=engine_args["model"],
        transport=transport,
        kv_bytes_per_token=per_token,
        num_tokens_moved=num_tokens,
        bytes_expected=num_tokens * per_token,
        bytes_sent=prefill.get("kv_bytes_sent", 0),
        bytes_offered=(num_full if transport == "shm" else num_tokens) * per_token,
        bytes_received=decode.get("kv_bytes_received", 0),
        load_failures=decode.get("num_kv_load_failures", 0),
        same_tokens=colocated.tokens == disaggregated.tokens,
        colocated=colocated,
        disaggregated=disaggregated,
    )


def check_fits(load: Load, ready: Ready) -> None:
    need = max(load.prompt_len + 4, 32 + load.output_len)
    if need > ready.max_model_len:
        raise ValueError(
            f"the load needs sequences of {need} tokens and the engine takes {ready.max_model_len}; "
            "lower --prompt-len or --output-len"
        )


def run(tell: Tell, router: Router, load: Load, ready: Ready) -> Side:
    """Send the load, collect every token and its time."""
    _warm_up(router, ready)
    asks = load.asks(ready.vocab_size)
    start = time.monotonic()
    arrivals: dict[str, float] = {}
    news_of: dict[str, list[News]] = {ask.name: [] for _, ask in asks}
    num_open = len(asks)
    while num_open:
        while asks and time.monotonic() - start >= asks[0][0]:
            _, ask = asks.pop(0)
            arrivals[ask.name] = time.monotonic()
            router.submit(ask)
        until = start + asks[0][0] - time.monotonic() if asks else SILENCE_S
        for news in _hear(router, max(0.0, until), is_due=not asks):
            news_of[news.name].append(news)
            if news.finished:
                num_open -= 1
                tell(f"{len(news_of) - num_open} of {len(news_of)} requests finished")
    for engine in router.engines:
        engine.send(TOTALS)
    counters = [engine.receive().counters for engine in router.engines]
    return _side(news_of, arrivals, counters)


def _warm_up(router: Router, ready: Ready) -> None:
    """One short request through everything, so that nothing is compiled or recorded on the clock."""
    for number in range(len(router.engines)):
        router.submit(Ask(f"warm-up-{number}", [11 + number] * (ready.block_size - 1), 8))
    num_open = len(router.engines)
    while num_open:
        num_open -= sum(news.finished for news in _hear(router, SILENCE_S, is_due=True))


def _hear(router: Router, timeout_s: float, *, is_due: bool) -> Iterator[News]:
    """What clients see of the engines' next messages. If something is due, silence is an error."""
    heard = wait([engine.connection for engine in router.engines], timeout_s)
    if is_due and not heard:
        raise RuntimeError(f"no engine has said anything for {SILENCE_S:g} s")
    for engine in router.engines:
        if engine.connection in heard:
            news = router.on_news(engine, engine.receive())
            if news is not None and news.error:
                raise RuntimeError(f"{news.name}: {news.error}")
            if news is not None:
                yield news


def _side(news_of: dict[str, list[News]], arrivals: dict[str, float], counters: list[dict[str, int]]) -> Side:
    prompts = [(arrivals[name], news_of[name][0].time_s) for name in arrivals if name.startswith("prompt")]
    began, ended = min(start for start, _ in prompts), max(end for _, end in prompts)
    gaps = [
        (earlier.time_s, later.time_s)
        for name, news in news_of.items()
        if name.startswith("writer")
        for earlier, later in zip(news, news[1:], strict=False)
    ]
    pauses = [_longest(gaps, start, end) for start, end in prompts]
    return Side(
        ttft_ms=spread([end - start for start, end in prompts]),
        itl_ms=spread([end - start for start, end in gaps if end >= began and start <= ended]),
        pause_ms=spread([pause for pause in pauses if pause is not None]),
        tokens={name: [t for item in news for t in item.token_ids] for name, news in news_of.items()},
        counters=counters,
    )


def _longest(gaps: list[tuple[float, float]], began: float, ended: float) -> float | None:
    """The longest gap that lies at least in part between two times; None if nobody wrote then."""
    return max((end - start for start, end in gaps if end >= began and start <= ended), default=None)


@contextmanager
def running(all_args: Sequence[dict[str, Any]]) -> Iterator[list[EngineProcess]]:
    """Engine processes that live inside the block, however it ends."""
    engines: list[EngineProcess] = []
    try:
        for args in all_args:
            engines.append(EngineProcess(args))
        yield engines
    finally:
        for engine in engines:
            engine.close()


@contextmanager
def transfer_configs(transport: str) -> Iterator[list[dict[str, Any]]]:
    """kv_transfer_config of the prefill and the decode engine."""
    roles = ("kv_producer", "kv_consumer")
    if transport == "tcp":
        yield [{"kv_connector": "TCPConnector", "kv_role": role} for role in roles]
        return
    memory = Path("/dev/shm") if sys.platform == "linux" and os.path.isdir("/dev/shm") else Path(gettempdir())
    folder = memory / f"prep-disagg-{os.getpid()}"
    extra = {"path": str(folder), "capacity_bytes": 1 << 30}
    try:
        yield [
            {"kv_connector": "SharedMemoryConnector", "kv_role": role, "kv_connector_extra_config": extra}
            for role in roles
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the engines have emptied it, unless they were killed
