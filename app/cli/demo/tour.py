"""The parts of `prep demo`, their texts and their pace."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path

import torch
from rich.console import Console
from rich.live import Live
from rich.table import Table

from app.cli import terminal
from app.cli.demo.drawing import WIDTH, line_of, picture, race
from app.cli.demo.pool import (
    BLOCK_SIZE,
    MAX_TOKENS,
    STEP_TOKENS,
    Event,
    Frame,
    SmallPool,
    Visitor,
    WatchedScheduler,
    choose_pool,
)
from engine.config import EngineArgs
from engine.core.request import Request
from engine.engine_core import EngineCore
from engine.frontend.tokenizer import Tokenizer
from engine.sampling_params import SamplingParams
from engine.zoo.registry import count_parameters
from engine.zoo.shop import open_shop
from prep_common.text import counted

OnToken = Callable[[int, float], None]
"""Called after each token with the number of tokens and the seconds so far."""


@dataclass(frozen=True)
class Run:
    """One generation and its cost."""

    token_ids: list[int]
    seconds: float
    computed: int
    """Positions computed by the model."""


def generate(core: EngineCore, prompt: list[int], count: int, per_request: int, on_token: OnToken) -> Run:
    """Generate `count` tokens, `per_request` by each request: its prompt is all tokens so far.

    One request computes the prompt once, then a position per token. With a request per token every token computes all
    positions before it, in an engine with `enable_prefix_caching=False`; else it would reuse the KV.
    """
    token_ids: list[int] = []
    computed, start = 0, time.perf_counter()
    params = SamplingParams(temperature=0, max_tokens=per_request, ignore_eos=True)
    while len(token_ids) < count:
        core.add_request(Request(f"from-{len(token_ids)}", prompt + token_ids, params))
        while core.has_unfinished():
            for output in core.step():
                token_ids += output.new_token_ids
            computed += core.scheduler.stats.num_scheduled_tokens
            on_token(len(token_ids), time.perf_counter() - start)
    return Run(token_ids, time.perf_counter() - start, computed)


MAX_TOKENS_RACED, RACE_SECONDS = 48, 12.0
"""Part 1 generates this many tokens twice; fewer on a machine that would exceed the seconds."""
STEP_SECONDS = 0.25
PAUSE_SECONDS = {"hit": 1.2, "preempt": 2.0, "resume": 1.2, "finish": 0.0}
"""Extra pause after a step with this event."""
ARRIVALS = [("A", 0, 0), ("B", 1, 0), ("C", 3, 1), ("D", 5, 1), ("E", 7, 0), ("F", 8, 1)]
"""Name, step of arrival, shop."""


@dataclass
class Tour:
    """Three parts; each prints its measurements and keeps them for the summary."""

    console: Console
    live: bool
    pace: float
    svg: Path | None
    trace: Path | None = None
    """File that records part 2."""
    naive: Run = field(init=False)
    cached: Run = field(init=False)
    answers: dict[str, list[int]] = field(init=False)
    pool: SmallPool = field(init=False)

    def __post_init__(self) -> None:
        args = EngineArgs("shop", enable_prefix_caching=False, num_gpu_blocks_override=256)
        self.core = EngineCore.from_args(args)
        self.tokenizer = Tokenizer.from_folder(self.core.config.model.path)

    def run(self) -> None:
        self._introduce()
        visitors = self._visitors()
        self._race(visitors[0].prompt)
        self._answer_alone(visitors)
        self._crowd(visitors)
        self._figures()

    def _introduce(self) -> None:
        model = self.core.config.model
        millions = count_parameters(model.path) / 1e6
        self.console.print("\n[bold]prep[/]  a readable LLM inference engine, running live")
        self.console.print(
            f"[dim]model {model.model}: {millions:.1f} M parameters, {model.num_hidden_layers} layers, "
            f"{model.dtype}; {torch.get_num_threads()} CPU threads. It answers for an invented manga shop.[/]"
        )

    def _heading(self, number: int, text: str) -> None:
        self.console.print(f"\n[bold cyan]{number}[/]  [bold]{text}[/]")

    def _visitors(self) -> list[Visitor]:
        """Return six questions to two shops, in the model's chat template."""
        shops = [open_shop(seed, titles=2) for seed in (1, 2)]
        questions = [iter(shop.questions) for shop in shops]
        visitors = []
        for name, arrives, shop in ARRIVALS:
            question = next(questions[shop])
            opening = {"role": "system", "content": shops[shop].system}
            messages = [opening, {"role": "user", "content": question}]
            prompt = self.tokenizer.encode(self.tokenizer.render_chat(messages))
            visitors.append(Visitor(name, arrives, question, prompt))
        return visitors

    @contextmanager
    def _redrawn(self, *, transient: bool = False) -> Iterator[Live | None]:
        """Yield a live part of the screen; None where redrawing is not possible."""
        if not self.live:
            yield None
            return
        with Live(console=self.console, auto_refresh=False, transient=transient) as area:
            yield area

    # 1

    def _race(self, prompt: list[int]) -> None:
        # The first run is slow and not measured; the second gives the speed of this machine.
        for _ in range(2):
            prefill = generate(self.core, prompt, 1, 1, lambda *_: None).seconds
        count = max(8, min(MAX_TOKENS_RACED, int(RACE_SECONDS / prefill)))
        self._heading(1, f"{counted(count, 'token')}, twice: the effect of a KV cache")
        runners = {"without cache": (0, 0.0), "with KV cache": (0, 0.0)}
        with self._redrawn(transient=True) as area:

            def show(name: str, tokens: int, seconds: float) -> None:
                runners[name] = (tokens, seconds)
                if area is not None:
                    area.update(race(runners, count), refresh=True)

            self.naive = generate(self.core, prompt, count, 1, lambda *at: show("without cache", *at))
            self.cached = generate(self.core, prompt, count, count, lambda *at: show("with KV cache", *at))
        self.console.print(race(runners, count))
        same = self.naive.token_ids == self.cached.token_ids
        verdict = f"{terminal.mark(same)} {'the same' if same else 'NOT the same'} {count} tokens"
        self.console.print(
            f"  {verdict}, [bold]{self._speed_up:.1f} times[/] faster. Without a cache, each token sends all\n"
            f"    before it through the model again: [bold]{self.naive.computed:,}[/] positions in place of "
            f"{self.cached.computed:,}."
        )

    @property
    def _speed_up(self) -> float:
        return self.naive.seconds / self.cached.seconds

    # 2

    def _answer_alone(self, visitors: list[Visitor]) -> None:
        """Compute each request's answer alone, as the reference for the batch."""
        core = self.core
        eos = frozenset(core.config.model.eos_token_ids)
        params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
        self.answers = {visitor.name: [] for visitor in visitors}
        for visitor in visitors:
            core.add_request(Request(visitor.name, visitor.prompt, params, eos_token_ids=eos))
            while core.has_unfinished():
                for output in core.step():
                    self.answers[visitor.name] += output.new_token_ids
        core.shutdown()

    def _crowd(self, visitors: list[Visitor]) -> None:
        """Run step by step: the block map on a terminal, a line per step elsewhere."""
        num_blocks = choose_pool(visitors, self.answers, self.core.config.scheduler.max_model_len)
        core = EngineCore.from_args(
            EngineArgs(
                "shop",
                block_size=BLOCK_SIZE,
                num_gpu_blocks_override=num_blocks,
                max_num_batched_tokens=STEP_TOKENS,
                max_num_seqs=len(visitors),
                scheduler_cls=WatchedScheduler,
                trace=str(self.trace) if self.trace else None,
            )
        )
        decode = partial(self.tokenizer.decode, skip_special_tokens=True)
        self.pool = SmallPool(core, visitors, decode)
        self._heading(2, f"six requests, {self.pool.num_blocks} blocks: not enough for all")
        self.console.print(
            f"[dim]   A, B, E ask one shop and C, D, F another, {STEP_TOKENS} tokens per step at most.\n"
            "   Reasons for waiting are those at the start of a step, blocks those in use after it.[/]"
        )
        events: list[tuple[int, Event]] = []
        with self._redrawn() as area:
            for frame in self.pool.frames():
                events += [(frame.step, event) for event in frame.events]
                if area is None:
                    print(line_of(frame), *(f"         {event.text}" for event in frame.events), sep="\n")
                else:
                    area.update(picture(frame, events), refresh=True)
                    pause = max((PAUSE_SECONDS[event.kind] for event in frame.events), default=0.0)
                    time.sleep(self.pace * (STEP_SECONDS + pause))
                self._save_first_preemption(frame, events)
        core.shutdown()

    def _save_first_preemption(self, frame: Frame, events: list[tuple[int, Event]]) -> None:
        if self.svg is None or not any(event.kind == "preempt" for event in frame.events):
            return
        with open(os.devnull, "w") as nowhere:
            recorder = Console(width=WIDTH, record=True, force_terminal=True, file=nowhere)
            recorder.print(picture(frame, events))
            recorder.save_svg(str(self.svg), title="prep demo")
        self.svg = None

    # 3

    def _figures(self) -> None:
        """Print the measurements, each with one sentence of explanation."""
        totals, answers = self.pool.totals, self.answers
        alone = sum(
            ceil(len(visitor.prompt) / STEP_TOKENS) + len(answers[visitor.name]) - 1
            for visitor in self.pool.visitors
        )
        same = sum(totals.answers[name] == token_ids for name, token_ids in answers.items())
        self._heading(3, "the figures explained")
        table = Table.grid(padding=(0, 2, 1, 2))
        table.add_column(justify="right", style="bold", width=16)
        table.add_column(width=56)
        all_same = (
            "" if same == len(answers) else " Here they did: please report it, with prep doctor's output."
        )
        for figure, explanation in (
            (
                f"{self._speed_up:.1f}x",
                "faster with a KV cache: a token's keys and values depend only on the tokens before it, so they "
                "are computed once and read by every later token.",
            ),
            (
                f"{totals.hit} of {totals.prompt}",
                "prompt tokens came from the prefix cache: a full block is found by the hash of everything up to "
                "its end, so requests to one shop share the blocks of its notes.",
            ),
            (
                f"{totals.preemptions} preempted",
                "because a running request needed a block and none was free: the newest loses all its blocks. "
                f"Of {totals.given_up} lost tokens, {totals.taken_back} were still cached when it resumed.",
            ),
            (
                f"{totals.rows / totals.steps:.1f} per step",
                f"requests in a batch on average: {counted(totals.steps, 'step')} where one after another "
                f"would take {alone}. "
                "Requests join and leave between any two steps, so none waits for a batch to end.",
            ),
            (
                f"{totals.peak_blocks} of {self.pool.num_blocks}",
                "blocks in use at the peak: an answer takes a block when it has filled the last one, and no "
                "request reserves room for tokens it never generates.",
            ),
            (
                f"{same} of {len(answers)}",
                "answers equal those computed alone with enough memory: batching, chunking, sharing and preemption "
                f"change when a token is computed, never which token.{all_same}",
            ),
        ):
            table.add_row(figure, explanation)
        self.console.print(table)
