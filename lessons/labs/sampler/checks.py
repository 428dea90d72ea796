"""Checks of the lab sampler: single rules, random rows in decimal arithmetic, the engine's sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from random import Random
from typing import TYPE_CHECKING, Any

from lessons.course.checking import Failed, Learner, check, refused, smallest

if TYPE_CHECKING:  # both import torch, which takes a second: only the last check needs it
    from engine.sample.processors import SampleBatch
    from engine.sample.sampler import Sampler

LAB = "sampler"
INF = math.inf
HALVES = [math.log(weight) for weight in (0.5, 0.2, 0.2, 0.1)]
"""Logits of the probabilities 0.5, 0.2, 0.2 and 0.1."""


@dataclass(frozen=True)
class Row:
    """Arguments of the whole sampler."""

    logits: list[float]
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    penalties: dict[str, float] = field(default_factory=dict)
    filters: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value}" for name, value in {**self.penalties, **self.filters}.items())
        return f"logits {self.logits}, prompt {self.prompt}, output {self.output}; {shown}"


# -- a second opinion: groups of equal tokens, in decimals


def penalised(row: Row) -> list[float]:
    said = row.penalties.get
    logits = []
    for token, logit in enumerate(row.logits):
        if token in row.prompt or token in row.output:
            factor = said("repetition", 1.0)
            logit = logit * (1 / factor if logit > 0 else factor)
        times = row.output.count(token)
        logits.append(logit - said("frequency", 0.0) * times - (said("presence", 0.0) if times else 0.0))
    return logits


def distribution(
    logits: Sequence[float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> list[float]:
    """Return the probabilities by the rules. Equal logits form a group, which is dropped or stays as a whole."""
    levels = sorted({logit for logit in logits if logit > -INF}, reverse=True)
    if temperature < 1e-5:
        best = logits.index(levels[0])
        return [float(token == best) for token in range(len(logits))]
    with localcontext() as context:
        context.prec = 40
        slack, scale = Decimal("1e-9"), Decimal(temperature)
        weight = {level: ((Decimal(level) - Decimal(levels[0])) / scale).exp() for level in levels}

        def mass(levels: Sequence[float]) -> Decimal:
            return sum((weight[logit] for logit in logits if logit in levels), Decimal(0))

        total = mass(levels)
        left = [level for level in levels if weight[level] / total + slack >= Decimal(min_p) / total]
        if top_k > 0:
            left = [level for level in left if sum(logit > level for logit in logits) < top_k]
        if top_p < 1:
            before = [mass(left[:place]) / mass(left) for place in range(len(left))]
            pairs = zip(left, before, strict=True)
            left = [level for level, more in pairs if more + slack < Decimal(top_p) or not more]
        return [float(weight[logit] / mass(left)) if logit in left else 0.0 for logit in logits]


# -- comparisons


def shown(name: str, *args: Any, **named: Any) -> str:
    parts = [repr(each) for each in args] + [f"{key}={value}" for key, value in named.items()]
    return f"{name}({', '.join(parts)})"


def near(call: str, what: str, yours: Any, right: Sequence[float]) -> None:
    """Raise Failed unless two lists of numbers agree to 1e-9, with the same zeros and infinities."""
    if not isinstance(yours, list) or len(yours) != len(right):
        raise Failed(f"the result must be a list of {len(right)} numbers, got {yours!r}", example=call)
    for token, (your, our) in enumerate(zip(yours, right, strict=True)):
        if not isinstance(your, int | float):
            raise Failed(f"the {what} of token {token} must be a number, got {your!r}", example=call)
        if your != our and not (math.isfinite(our) and our and abs(your - our) <= 1e-9 * (1 + abs(our))):
            all_of_them = ", ".join(f"{each:.6g}" for each in right)
            raise Failed(
                f"the {what} of token {token} is {your!r}; by the rules it is {our:.6g} ({all_of_them})",
                example=call,
            )


def penalise(
    learner: Learner, logits: list[float], prompt: list[int], output: list[int], **penalties: float
) -> list[float]:
    """Compare with the rules; return the learner's logits."""
    yours: list[float] = learner.call("penalise", logits, prompt, output, **penalties)
    call = shown("penalise", logits, prompt, output, **penalties)
    near(call, "logit", yours, penalised(Row(logits, prompt, output, penalties)))
    return yours


def filtered(learner: Learner, logits: list[float], **filters: Any) -> list[float]:
    """Compare with the rules; return the learner's probabilities."""
    yours: list[float] = learner.call("probabilities", logits, **filters)
    near(shown("probabilities", logits, **filters), "probability", yours, distribution(logits, **filters))
    return yours


def drawn(learner: Learner, weights: list[float], u: float, right: int) -> None:
    yours = learner.call("draw", weights, u)
    if yours != right or isinstance(yours, bool):
        raise Failed(f"drew {yours!r}; by the rules it is {right}", example=shown("draw", weights, u))


# -- single rules


@check(LAB)
def repetition_makes_tokens_less_likely(learner: Learner) -> None:
    """Repetition divides positive logits and multiplies others, once, for tokens of prompt or output."""
    penalise(learner, [4.0, -4.0, 0.0, 4.0, -4.0, 3.0], [0, 1, 2], [], repetition=2.0)
    penalise(learner, [4.0, -4.0, -INF, 4.0], [0, 0], [0, 1, 1, 2], repetition=1.25)
    penalise(learner, [4.0, -4.0, 1.0], [0], [1], repetition=0.5)


@check(LAB)
def presence_and_frequency_count_output(learner: Learner) -> None:
    """Repetition goes by the sign before anything is subtracted; frequency and presence count the output only."""
    penalise(learner, [1.0, 1.0, -1.0, -INF], [0, 0, 2], [1, 2, 2, 2, 3], frequency=0.5)
    penalise(learner, [1.0, 1.0, -1.0, -INF], [0, 0, 2], [1, 2, 2, 2, 3], presence=0.5)
    penalise(learner, [1.0, 1.0], [], [0, 0], presence=-1.5, frequency=-0.25)
    penalise(learner, [1.0, -1.0, 3.0], [], [0, 1, 1], repetition=2.0, presence=2.0, frequency=0.25)


@check(LAB)
def placeholders_are_ignored(learner: Learner) -> None:
    """Ids of len(logits) and above have no logit, and the arguments stay as they are."""
    logits = learner.put([1.0, 2.0])
    learner.call("penalise", logits, [0, 2, 7], [1, 2, 9], repetition=2.0, presence=1.0)
    if logits.content() != [1.0, 2.0]:
        raise Failed(
            "penalise changed its argument", example="penalise([1.0, 2.0], [0], [1], repetition=2.0)"
        )
    penalise(learner, [1.0, 2.0], [0, 2, 7], [1, 2, 9], repetition=2.0, presence=1.0, frequency=0.5)


@check(LAB)
def temperature_is_a_softmax(learner: Learner) -> None:
    """Without filters: the softmax of logits / temperature, at any size of the logits; -inf has probability 0."""
    filtered(learner, [1.0, 2.0, 3.0, -INF])
    filtered(learner, [1.0, 2.0, 3.0, -INF], temperature=2.0)
    filtered(learner, [1.0, 2.0, 2.5], temperature=0.25)
    filtered(learner, [5000.0, 4999.0, 4990.0])
    filtered(learner, [-5000.0, -5001.0])
    filtered(learner, [30.0, 29.999], temperature=0.001)


@check(LAB)
def greedy_takes_the_lowest_of_equals(learner: Learner) -> None:
    """A temperature below 1e-5 gives 1.0 to the largest logit, of equals to the lowest id; filters do not apply."""
    filtered(learner, [1.0, 3.0, 3.0, -INF], temperature=0.0)
    filtered(learner, [-2.0, -1.0], temperature=9e-6, top_k=1, top_p=0.1, min_p=1.0)
    filtered(learner, [3.0, 3.0], temperature=1e-5)


@check(LAB)
def a_low_temperature_is_greedy_too(learner: Learner) -> None:
    """Every temperature below 1e-5 is greedy, not only 0: of equal logits the lowest id gets 1.0."""
    smallest(
        [5e-6, 9.99e-6, 1e-9, 1e-300, 0.0],
        lambda temperature: filtered(learner, [1.0, 3.0, 3.0, 3.0 - 1e-9], temperature=temperature),
    )


@check(LAB)
def any_size_of_logits(learner: Learner) -> None:
    """The softmax does not overflow, whatever the logits and temperature: up to 1e308, divided by 1e-5."""
    for logits in ([1e305, 1e305, -1e305], [1e308, -1e308], [-1e308, -1e308, 1.0], [1e300, 1e300, -INF]):
        for temperature in (1.0, 1e-5, 1e5):
            filtered(learner, logits, temperature=temperature)


@check(LAB)
def min_p_is_a_share_of_the_peak(learner: Learner) -> None:
    """min_p drops tokens below this share of the most likely one; a token that has just the share stays."""
    for min_p in (0.19, 0.2, 0.21, 0.4, 0.41, 1.0):
        filtered(learner, HALVES, min_p=min_p)
    filtered(learner, [3.0, 3.0, 2.0], min_p=1.0)
    filtered(learner, [2.0, 1.0, 0.0], min_p=0.2, temperature=2.0)


@check(LAB)
def top_k_keeps_ties(learner: Learner) -> None:
    """top_k keeps the k most likely tokens and those as likely as the last of them; 0 and -1 keep all."""
    filtered(learner, [1.0, 3.0, 2.0, 0.0], top_k=2)
    for top_k in (-1, 0, 1, 2, 3, 4, 9):
        filtered(learner, HALVES, top_k=top_k)
    filtered(learner, [2.0, 2.0, 2.0, -INF], top_k=1)
    filtered(learner, [2.0, -INF, -INF], top_k=2)


@check(LAB)
def top_p_keeps_the_token_that_crosses(learner: Learner) -> None:
    """The token at which the sum reaches top_p stays, with tokens as likely as it; no token after it does."""
    for top_p in (0.01, 0.49, 0.5, 0.51, 0.69, 0.71, 0.9, 0.91, 1.0):
        filtered(learner, HALVES, top_p=top_p)
    filtered(learner, [1.0, 1.0, 1.0, 1.0], top_p=0.3)
    filtered(learner, [0.0, 1.0, 3.0, 2.0], top_p=0.8)


@check(LAB)
def rounding_has_a_tolerance(learner: Learner) -> None:
    """A value or a sum that is less than 1e-9 below its bound in 2 or 4 counts as having reached it, another not."""
    halves = [0.0, math.log(0.5)]  # probabilities 2/3 and 1/3: the bound of min_p is min_p * 2/3
    for more in (0.6e-9, 1.2e-9, 3e-9, 1e-7):
        filtered(learner, halves, min_p=0.5 + more)
    for more in (0.5e-9, 3e-9, 1e-7):
        filtered(learner, HALVES, top_p=0.5 + more)


@check(LAB)
def filters_come_in_their_order(learner: Learner) -> None:
    """First the temperature, then min_p, top_k and top_p; top_p is a share of what the others leave."""
    logits = [math.log(weight) for weight in (0.4, 0.3, 0.2, 0.1)]
    filtered(learner, logits, top_k=2, top_p=0.55)  # 0.4 / 0.7 reaches it
    filtered(learner, logits, min_p=0.5, top_p=0.43)  # 0.4 / 0.9 reaches it
    filtered(learner, logits, temperature=4.0, top_p=0.5)
    filtered(learner, logits, temperature=0.5, min_p=0.4)
    filtered(learner, logits, min_p=0.7, top_k=3, top_p=0.95)


@check(LAB)
def a_row_without_a_token_is_refused(learner: Learner) -> None:
    """Only banned tokens, NaN and +inf raise ValueError, at every temperature."""
    for logits in ([-INF, -INF], [1.0, math.nan], [math.nan, 1.0], [1.0, INF]):
        for temperature in (1.0, 0.0):
            example = shown("probabilities", logits, temperature=temperature)
            refused(example, learner.call, "probabilities", logits, temperature=temperature)


@check(LAB)
def draw_inverts_the_cumulative_sum(learner: Learner) -> None:
    """A draw is the lowest id whose cumulative sum exceeds u, never one of probability 0."""
    quarters = [0.25, 0.0, 0.5, 0.25, 0.0]
    for u, right in ((0.0, 0), (0.2, 0), (0.25, 2), (0.5, 2), (0.74, 2), (0.75, 3), (0.999999, 3)):
        drawn(learner, quarters, u, right)
    drawn(learner, [0.0, 0.0, 1.0], 0.0, 2)
    drawn(learner, [0.1, 0.2, 0.3, 0.3999, 0.0], 0.99995, 3)


@check(LAB)
def random_rows(learner: Learner) -> None:
    """200 random rows: penalties, distribution and token are those of the rules."""
    rng = Random(8)

    def run(size: int) -> None:
        row = random_row(rng, size)
        logits = penalise(learner, row.logits, row.prompt, row.output, **row.penalties)
        weights = filtered(learner, logits, **row.filters)
        u = 0.999 * rng.random()
        drawn(learner, weights, u, next(token for token in range(size) if sum(weights[: token + 1]) > u))

    smallest([2 + number // 20 for number in range(200)], run)


def random_row(rng: Random, size: int) -> Row:
    """Numbers are multiples of 1/8 and factors powers of 2, so that equal logits stay equal in any arithmetic."""

    def some(values: Sequence[float]) -> float:
        return rng.choice(values) if rng.random() < 0.5 else values[0]

    logits = [rng.randint(-24, 24) / 8 for _ in range(size)]
    for token in range(1, size):
        logits[token] = rng.choice([logits[token], logits[token], logits[0], -INF])
    return Row(
        logits,
        [rng.randrange(size) for _ in range(rng.randint(1, 3))],
        [rng.randrange(size) for _ in range(rng.randint(0, 4))],
        {
            "repetition": some([1.0, 2.0, 4.0, 0.5]),
            "presence": some([0.0, 0.5, -1.0, 2.0]),
            "frequency": some([0.0, 0.25, 0.5]),
        },
        {
            "temperature": some([1.0, 0.5, 2.0, 0.0]),
            "top_k": int(some([0, 1, 2, 3, 50])),
            "top_p": some([1.0, rng.random(), rng.random()]),
            "min_p": some([0.0, rng.random(), rng.random() / 10]),
        },
    )


# -- the engine's sampler


@check(LAB)
def the_engine_agrees(learner: Learner) -> None:
    """The engine has the same distributions; with your functions behind its seam it draws the same tokens."""
    import torch

    from engine.sample.draft_acceptance import target_probabilities

    rng = Random(21)
    rows = [random_row(rng, 12) for _ in range(80)]
    logits = torch.tensor([row.logits for row in rows])
    sampler, batch = engine_sampler(rows)
    theirs = sampler(logits.clone(), batch).token_ids.tolist()
    plan, edited = sampler.plan(batch.slots), logits.clone()
    for processor, lines in plan.edits:
        processor.apply(edited, lines, batch)
    for row, right in zip(rows, target_probabilities(edited, plan).tolist(), strict=True):
        for token, (your, their) in enumerate(zip(sample_with(learner, row), right, strict=True)):
            if abs(your - their) > 1e-5 or (your > 0) != (their > 0):
                raise Failed(f"token {token} has {your!r}; in the engine {their:.6g}", example=repr(row))
    sampler, batch = engine_sampler(rows, [processor_of(learner, rows)], plain=True)
    yours = sampler(logits.clone(), batch).token_ids.tolist()
    for row, mine, engines in zip(rows, yours, theirs, strict=True):
        if mine != engines:
            raise Failed(f"the engine draws {engines}, with your functions {mine}", example=repr(row))


def engine_sampler(
    rows: Sequence[Row], processors: Sequence[type[Any]] = (), plain: bool = False
) -> tuple[Sampler, SampleBatch]:
    """Return the engine's sampler with a request per row. plain: without the rows' penalties and filters."""
    import numpy as np

    from engine.core.sched_output import RequestInit
    from engine.sample.processors import SampleBatch
    from engine.sample.sampler import Sampler
    from engine.sampling_params import SamplingParams

    sampler = Sampler(len(rows[0].logits), len(rows), processors=processors)
    texts = [row.prompt + row.output for row in rows]
    table = np.zeros((len(rows), 16), np.int32)
    for slot, (row, text) in enumerate(zip(rows, texts, strict=True)):
        table[slot, : len(text)] = text
        said = {f"{name}_penalty": value for name, value in row.penalties.items()}
        params = SamplingParams() if plain else SamplingParams.create(**said, **row.filters)
        sampler.add_request(slot, RequestInit(text, len(row.prompt), params, frozenset(), seed=slot))
    return sampler, SampleBatch(
        np.arange(len(rows)),
        np.array([len(text) for text in texts]),
        np.array([len(row.prompt) for row in rows]),
        table,
    )


def sample_with(learner: Learner, row: Row) -> list[float]:
    logits = learner.call("penalise", row.logits, row.prompt, row.output, **row.penalties)
    found: list[float] = learner.call("probabilities", logits, **row.filters)
    return found


def processor_of(learner: Learner, rows: Sequence[Row]) -> type[Any]:
    """Return a class for `logits_processors` that replaces logits by logarithms of the learner's probabilities."""

    class Learned:
        filters = True

        def __init__(self, *sizes: Any) -> None:
            pass

        def add_request(self, slot: int, init: Any) -> bool:
            return True

        def remove_request(self, slot: int) -> None:
            pass

        def apply(self, logits: Any, edited: Any, batch: SampleBatch) -> None:
            for at in edited.tolist():
                weights = sample_with(learner, rows[at])
                logits[at] = logits.new_tensor([math.log(each) if each > 0 else -INF for each in weights])

    return Learned
