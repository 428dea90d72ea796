"""Token identity: the learner's engine must give every prompt the tokens that `LLM("shop")` gives.

roomy    default limits: batches, prefix hits
tight    few blocks and a small budget: preemptions and chunks too, with integrity checks after every step
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os.path import commonprefix
from statistics import median
from typing import TYPE_CHECKING, Any

from engine.core.errors import EngineDeadError
from engine.core.observer import StepObserver
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from engine.sampling_params import SamplingParams
from lessons.mine.engine import WHOLE_PROMPTS, open_mine
from lessons.mine.errors import piece_error
from lessons.mine.pieces import Pieces
from prep_common.text import counted

if TYPE_CHECKING:
    from engine.llm import LLM

Tell = Callable[[str], object]
MAX_TOKENS = 96
BLOCK_SIZE = 16
TIGHT_BUDGET = 128
LEAST_ROUNDS, MOST_SPREAD = 3, 0.25
"""A speed is stated after so many rounds, if their ratios spread over at most this share of the median."""


@dataclass
class Run:
    """Output of one engine for all prompts, and what happened on the way."""

    token_ids: list[list[int]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    seconds: float = 0.0
    preemptions: int = 0
    chunks: int = 0
    """Rows that computed a part of a prompt."""
    hit_tokens: int = 0
    longest_prompt: int = 0

    @property
    def tokens_per_s(self) -> float:
        return sum(map(len, self.token_ids)) / self.seconds


class Watch(StepObserver):
    """Counts preemptions and chunks."""

    def __init__(self, core: Any) -> None:
        self._requests = core.scheduler.requests
        self.preemptions = self.chunks = 0

    def step(
        self, out: SchedulerOutput, result: ModelRunnerOutput, outs: list[EngineCoreOutput], duration_s: float
    ) -> None:
        self.preemptions += len(out.preempted_request_ids)
        for row in out.scheduled:
            request = self._requests.get(row.request_id)
            if request is not None and row.start + row.num_tokens < request.num_prompt_tokens:
                self.chunks += 1


def serve(llm: LLM, prompts: Sequence[str]) -> Run:
    """Answer the prompts greedily. Raises PieceError."""
    core: Any = llm.llm_engine.engine_core
    watch = Watch(core)
    core.observers.append(watch)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, skip_special_tokens=False)
    began = time.perf_counter()
    try:
        with quiet_engine():
            outputs = llm.generate(list(prompts), params, use_tqdm=False)
    except EngineDeadError as dead:
        raise piece_error(dead) or dead from None
    run = Run(seconds=time.perf_counter() - began)
    core.observers.remove(watch)
    for output in outputs:
        run.token_ids.append(list(output.outputs[0].token_ids))
        run.texts.append(output.outputs[0].text)
        run.hit_tokens += output.num_cached_tokens or 0
        run.longest_prompt = max(run.longest_prompt, len(output.prompt_token_ids))
    run.preemptions, run.chunks = watch.preemptions, watch.chunks
    return run


@dataclass
class Identity:
    """The three runs of the same prompts."""

    ours: Run
    roomy: Run
    tight: Run

    @property
    def is_identical(self) -> bool:
        return self.ours.token_ids == self.roomy.token_ids == self.tight.token_ids

    def num_same(self, run: Run) -> int:
        """Number of prompts with the same tokens as ours."""
        return sum(a == b for a, b in zip(self.ours.token_ids, run.token_ids, strict=True))

    def first_difference(self) -> tuple[str, int, int] | None:
        """Return (run, prompt, position) of the first token that differs; None without one."""
        for name, run in (("roomy", self.roomy), ("tight", self.tight)):
            for prompt, pair in enumerate(zip(self.ours.token_ids, run.token_ids, strict=True)):
                if pair[0] != pair[1]:
                    return name, prompt, len(commonprefix(pair))
        return None


def tight_limits(pieces: Pieces, longest_prompt: int) -> dict[str, Any]:
    """Return limits that cause preemptions and, with a scheduler that cuts prompts, chunks: one request just fits."""
    num_blocks = 1 - (-(longest_prompt + MAX_TOKENS) // BLOCK_SIZE)
    limits = {"block_size": BLOCK_SIZE, "num_gpu_blocks_override": num_blocks, "debug_checks": True}
    cuts = not pieces.has("scheduler") or pieces["scheduler"].exercise != WHOLE_PROMPTS
    return limits | ({"max_num_batched_tokens": TIGHT_BUDGET, "max_num_seqs": 64} if cuts else {})


def compare(
    pieces: Pieces, prompts: Sequence[str], model: str = "shop", tell: Tell = lambda text: None
) -> Identity:
    """Serve the prompts with our engine, and twice with the learner's. Raises PieceError."""
    from engine.llm import LLM

    tell("our engine")
    with LLM(model) as llm:
        ours = serve(llm, prompts)
    tell("your engine")
    with open_mine(pieces, model) as llm:
        roomy = serve(llm, prompts)
    tell("your engine with few blocks and a small budget")
    with open_mine(pieces, model, **tight_limits(pieces, ours.longest_prompt)) as llm:
        tight = serve(llm, prompts)
    return Identity(ours, roomy, tight)


def measure(
    pieces: Pieces, prompts: Sequence[str], rounds: int, tell: Tell = lambda text: None
) -> list[tuple[float, float]]:
    """Return (tokens/s of our engine, of the learner's) for each round: equal prompts, new in each, in turn."""
    from engine.llm import LLM

    size = len(prompts) // (rounds + 1)
    pairs = []
    with LLM("shop") as ours, open_mine(pieces) as mine:
        for number in range(rounds + 1):
            tell(f"round {number} of {rounds}")
            part = prompts[number * size : (number + 1) * size]
            order = (ours, mine) if number % 2 else (mine, ours)
            speed = {id(llm): serve(llm, part).tokens_per_s for llm in order}
            pairs.append((speed[id(ours)], speed[id(mine)]))
    return pairs[1:]  # the first round warms up


def conclude(pairs: Sequence[tuple[float, float]]) -> tuple[bool, str]:
    """Return whether rounds of `measure` decide how fast the learner's engine is, and a sentence about it."""
    ratios = sorted(mine / ours for ours, mine in pairs)
    middle, spread = median(ratios), ratios[-1] - ratios[0]
    measured = (
        f"{ratios[0]:.0%} to {ratios[-1]:.0%} of our tokens per second in {counted(len(ratios), 'round')}"
    )
    if len(ratios) < LEAST_ROUNDS:
        return False, f"no conclusion from {measured}; measure at least {LEAST_ROUNDS} rounds with --rounds"
    if spread > MOST_SPREAD * middle:
        return False, (
            f"no conclusion: {measured}. They spread over {spread / middle:.0%} of their median; at most "
            f"{MOST_SPREAD:.0%} is allowed. Close other programs and measure again, or measure longer rounds with "
            "--prompts and more of them with --rounds"
        )
    return True, f"your engine makes {middle:.0%} of our tokens per second, the median of {measured}"


@contextmanager
def quiet_engine() -> Iterator[None]:
    """Keep the engine's own report of a failed step off the terminal: its cause becomes an error message."""
    logger = logging.getLogger("engine.engine_core")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
