"""The story of `prep demo`: what is shown, in which words, at which pace."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli import screen

if TYPE_CHECKING:
    from rich.console import Console

    from app.cli.demo.naive import Run
    from app.cli.demo.pool import SmallPool, Visitor
    from engine.engine_core import EngineCore
    from engine.frontend.tokenizer import Tokenizer

app = screen.command_app()

TOKENS = 48
"""Length of the two generations of part 1."""
STEP_SECONDS = 0.25
PAUSE_SECONDS = {"hit": 1.2, "preempt": 2.0, "resume": 1.2, "finish": 0.0}
ARRIVALS = [("A", 0, 0), ("B", 1, 0), ("C", 3, 1), ("D", 5, 1), ("E", 7, 0), ("F", 8, 1)]
"""Name, step of arrival, shop. A, B and E ask one shop, C, D and F another."""


@app.command()
def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Do not slow down for the eye.")] = False,
) -> None:
    """A tour of the live engine: under a minute, no input needed.

    1. the same tokens with and without a KV cache; 2. six requests in a block pool that is too small:
    a prefix hit, a preemption, and who waits for what; 3. what the figures mean.

    Everything is computed while you watch. Ctrl-C leaves.
    """
    console = screen.out()
    live = screen.is_live(console)
    pace = 1.0 if live and not fast else 0.0
    with _status(console, "loading the shipped model"):
        from app.cli.demo.pool import BLOCK_SIZE, STEP_TOKENS, SmallPool, WatchedScheduler, choose_pool
        from engine.config import EngineArgs
        from engine.engine_core import EngineCore
        from engine.frontend.tokenizer import Tokenizer

        core = EngineCore.from_args(
            EngineArgs("shop", enable_prefix_caching=False, num_gpu_blocks_override=256)
        )
        tokenizer = Tokenizer.from_folder(core.config.model.path)
    _introduce(console, core)
    visitors = _visitors(tokenizer)
    cached, naive = _race(console, core, visitors[0].prompt, live=live)
    answers = _answers(core, visitors)
    core.shutdown()

    num_blocks = choose_pool(visitors, answers, core.config.scheduler.max_model_len)
    small = EngineCore.from_args(
        EngineArgs(
            "shop",
            block_size=BLOCK_SIZE,
            num_gpu_blocks_override=num_blocks,
            max_num_batched_tokens=STEP_TOKENS,
            max_num_seqs=len(visitors),
            scheduler_cls=WatchedScheduler,
        )
    )
    pool = SmallPool(small, visitors, lambda ids: tokenizer.decode(ids, skip_special_tokens=True))
    _crowd(console, pool, num_blocks - 1, pace, live=live)
    small.shutdown()
    _figures(console, pool, num_blocks - 1, cached, naive, answers)
    screen.next_command("prep chat shop", "talk to the model yourself")


@contextmanager
def _status(console: Console, text: str) -> Iterator[None]:
    if screen.is_live(console):
        with console.status(f"[dim]{text}[/]"):
            yield
    else:
        yield


def _heading(console: Console, number: int, text: str) -> None:
    console.print(f"\n[bold cyan]{number}[/]  [bold]{text}[/]")


def _introduce(console: Console, core: EngineCore) -> None:
    import torch

    from engine.zoo.registry import count_parameters

    model = core.config.model
    millions = count_parameters(model.path) / 1e6
    console.print("\n[bold]prep[/]  a readable LLM inference engine, running live", soft_wrap=True)
    console.print(
        f"[dim]model {model.model}: {millions:.1f} M parameters, {model.num_hidden_layers} layers, "
        f"{model.dtype}; {torch.get_num_threads()} CPU threads. It answers for an invented manga shop.[/]"
    )


def _visitors(tokenizer: Tokenizer) -> list[Visitor]:
    """Six questions to two shops, written with the model's chat template."""
    from app.cli.demo.pool import Visitor
    from app.cli.shop import open_shop

    shops = [open_shop(seed, titles=2) for seed in (1, 2)]
    questions = [iter(shop.questions) for shop in shops]
    visitors = []
    for name, arrives, shop in ARRIVALS:
        question = next(questions[shop])
        messages = [{"role": "system", "content": shops[shop].system}, {"role": "user", "content": question}]
        visitors.append(Visitor(name, arrives, question, tokenizer.encode(tokenizer.render_chat(messages))))
    return visitors


def _race(console: Console, core: EngineCore, prompt: list[int], *, live: bool) -> tuple[Run, Run]:
    """Part 1: returns the run with the cache and the one without."""
    from rich.live import Live

    from app.cli.demo.drawing import race
    from app.cli.demo.naive import with_cache, without_cache

    _heading(console, 1, f"{TOKENS} tokens, twice: what a KV cache saves")
    with_cache(core, prompt, 2, lambda *_: None)  # first calls are slow everywhere; measure the others
    rows = [("without cache", 0, 0.0), ("with KV cache", 0, 0.0)]
    with Live(console=console, auto_refresh=False, transient=True) if live else _no_live() as screen_part:

        def show(row: int, count: int, seconds: float) -> None:
            rows[row] = (rows[row][0], count, seconds)
            if live:
                screen_part.update(race(rows, TOKENS), refresh=True)

        naive = without_cache(core, prompt, TOKENS, lambda count, seconds: show(0, count, seconds))
        cached = with_cache(core, prompt, TOKENS, lambda count, seconds: show(1, count, seconds))
    console.print(race([(rows[0][0], TOKENS, naive.seconds), (rows[1][0], TOKENS, cached.seconds)], TOKENS))
    same = naive.token_ids == cached.token_ids
    verdict = f"{screen.mark(same)} {'the same' if same else 'NOT the same'} {TOKENS} tokens"
    console.print(
        f"  {verdict}, [bold]{naive.seconds / cached.seconds:.1f} times[/] faster. "
        "Without a cache, each token sends all\n    before it through the model again: "
        f"[bold]{naive.computed:,}[/] positions in place of {cached.computed:,}."
    )
    return cached, naive


@contextmanager
def _no_live() -> Iterator[None]:
    yield


def _answers(core: EngineCore, visitors: list[Visitor]) -> dict[str, list[int]]:
    """What each request says when memory is plenty: the yardstick for part 2."""
    from app.cli.demo.pool import MAX_TOKENS
    from engine.core.request import Request
    from engine.sampling_params import SamplingParams

    eos = frozenset(core.config.model.eos_token_ids)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    answers: dict[str, list[int]] = {}
    for visitor in visitors:  # one after the other: alone in the engine
        core.add_request(Request(visitor.name, visitor.prompt, params, eos_token_ids=eos))
        answers[visitor.name] = []
        while core.has_unfinished():
            for output in core.step():
                answers[visitor.name] += output.new_token_ids
    return answers


def _crowd(console: Console, pool: SmallPool, num_blocks: int, pace: float, *, live: bool) -> None:
    """Part 2: step by step, with the block map on a terminal and a line per step elsewhere."""
    from rich.live import Live

    from app.cli.demo.drawing import line_of, picture
    from app.cli.demo.pool import BLOCK_SIZE, STEP_TOKENS

    _heading(console, 2, f"six requests, {num_blocks} blocks: not enough for all")
    console.print(
        f"[dim]   A, B, E ask one shop and C, D, F another, {STEP_TOKENS} tokens per step at most.[/]"
    )
    events = []
    with Live(console=console, auto_refresh=False) if live else _no_live() as screen_part:
        for frame in pool.frames():
            events += [(frame.step, event) for event in frame.events]
            if live:
                screen_part.update(picture(frame, events, num_blocks, BLOCK_SIZE), refresh=True)
                pause = max((PAUSE_SECONDS[event.kind] for event in frame.events), default=0.0)
                time.sleep(pace * (STEP_SECONDS + pause))
            else:
                print(line_of(frame))
                for event in frame.events:
                    print(f"         {event.text}")


def _figures(
    console: Console,
    pool: SmallPool,
    num_blocks: int,
    cached: Run,
    naive: Run,
    answers: dict[str, list[int]],
) -> None:
    """Part 3: what was measured, with one sentence each on why."""
    from rich.table import Table

    totals = pool.totals
    num_tokens = sum(len(ids) for ids in answers.values())
    same = sum(totals.answers[name] == ids for name, ids in answers.items())
    _heading(console, 3, "the figures, and why")
    table = Table.grid(padding=(0, 2, 1, 2))
    table.add_column(justify="right", style="bold", width=16)
    table.add_column(width=56)
    table.add_row(
        f"{naive.seconds / cached.seconds:.1f}x",
        "faster with a KV cache: a token's keys and values depend only on what stands before it, so they are "
        "computed once and read by every later token.",
    )
    table.add_row(
        f"{totals.hit} of {totals.prompt}",
        "prompt tokens came from the prefix cache: a full block is found by the hash of everything up to its "
        "end, so requests to one shop share the blocks of its notes.",
    )
    table.add_row(
        f"{totals.preemptions} preempted",
        "because a running request needed a block and none was free: the newest gives all of its own back. "
        f"Of {totals.given_up} tokens given up, {totals.taken_back} were still cached when it resumed.",
    )
    table.add_row(
        f"{totals.rows / totals.steps:.1f} per step",
        f"requests in a batch on average: {totals.steps} steps for {num_tokens} tokens in six answers. "
        "Requests join and leave between any two steps; three cost a step little more than one.",
    )
    table.add_row(
        f"{totals.peak_blocks} of {num_blocks}",
        "blocks in use at the peak: an answer takes a block when it has filled the last one, and no request "
        "reserves room for words it never says.",
    )
    table.add_row(
        f"{same} of {len(answers)}",
        "answers are those given alone with plenty of memory: batching, chunking, sharing and preemption "
        "change when a token is computed, never which.",
    )
    console.print(table)
