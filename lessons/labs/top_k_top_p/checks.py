"""Checks of the labs cpp-, cuda- and triton-top-k-top-p: the token that float64 and a sort choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
from numpy.typing import NDArray

from lessons.course.checking import Failed, Learner, check, smallest
from lessons.course.native import Grid, Out, about, run, run_triton
from lessons.labs.kernel_checks import check_accesses

LAB = "top-k-top-p"
FUNCTION = "top_k_top_p"
THREADS = 256
SHARED_BYTES = 32 * THREADS * 6
"""32 sums in fp32 and 32 counts in 16 bits for each thread."""
STEP = 1 / 64
"""Logits are multiples of it."""
BOOST = 100.0
"""Noise that makes a token win if it stays."""
Array = NDArray[np.float32]


@dataclass(frozen=True)
class Row:
    """A row of logits and its parameters. `boosts`: tokens that win if they stay, the first before the others."""

    logits: Sequence[float] | Array = field(repr=False)
    temperature: float = 1.0
    top_k: int = 0
    """0: off."""
    top_p: float = 1.0
    boosts: tuple[int, ...] = ()
    noisy: bool = True
    offset: float = 0.0
    """Added to all noise."""
    seed: int = 0

    @property
    def vocab(self) -> int:
        return len(self.logits)

    def __str__(self) -> str:
        logits = ", ".join(f"{logit:g}" for logit in list(self.logits)[:8])
        more = f", ... ({self.vocab} in all)" if self.vocab > 8 else ""
        top_k = f", top_k {self.top_k}" if self.top_k else ""
        return f"logits {logits}{more}; temperature {self.temperature:g}{top_k}, top_p {self.top_p:.4g}"


def scaled(row: Row) -> NDArray[np.float64]:
    logits = np.asarray(row.logits, np.float64)
    return (logits - logits.max()) / (row.temperature or 1.0)


def shares_of(x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the different values, the highest first, and the share of all of exp(x) from the top down to each."""
    values, counts = np.unique(x, return_counts=True)
    mass = np.cumsum((np.exp(values) * counts)[::-1])
    return values[::-1], mass / mass[-1]


def staying(row: Row) -> NDArray[np.bool_]:
    """Return which tokens stay, by a sort in float64."""
    x = scaled(row)
    if row.temperature == 0:
        return x == 0
    stays = np.isfinite(x)
    if row.top_k:
        stays &= x >= np.sort(x)[::-1][min(row.top_k, row.vocab) - 1]
    if row.top_p < 1:
        values, shares = shares_of(x[stays])
        short = int((shares < np.float32(row.top_p)).sum())
        stays &= x >= values[min(short, len(values) - 1)]
    return stays


def noise_of(row: Row) -> Array:
    """Gumbel noise in steps; with it two scores are equal only if the row is not noisy."""
    rng = np.random.default_rng([row.seed, row.vocab])
    noise = -np.log(-np.log(rng.random(row.vocab))) if row.noisy else np.zeros(row.vocab)
    for place, token in enumerate(row.boosts):
        noise[token] = BOOST * (len(row.boosts) - place) + 2000
    return (noise + row.offset).astype(np.float32)


def choice(row: Row, noise: Array) -> int:
    """Return the right token."""
    if row.temperature == 0:
        return int(np.argmax(row.logits))
    return int(np.argmax(np.where(staying(row), scaled(row) + noise, -np.inf)))


def batch(rows: Sequence[Row]) -> tuple[list[NDArray[np.generic]], list[int]]:
    """Return the arrays of the contract, and the right tokens; each winner is lifted clear of the next."""
    noises = [noise_of(row) for row in rows]
    right = [choice(row, noise) for row, noise in zip(rows, noises, strict=True)]
    for row, noise, token in zip(rows, noises, right, strict=True):
        noise[token] += 0.01 if row.noisy else 0
    logits = np.array([np.asarray(row.logits, np.float32) for row in rows])
    columns = [
        np.array([row.temperature for row in rows], np.float32),
        np.array([row.top_k or row.vocab for row in rows], np.int32),
        np.array([row.top_p for row in rows], np.float32),
    ]
    return [logits, np.array(noises), *columns], right


def compare(learner: Learner, *rows: Row, backwards: bool = False) -> None:
    arrays, right = batch(rows)
    example = str(rows[0]) if len(rows) == 1 else f"{len(rows)} rows, the first with {rows[0]}"
    with about(example):
        if learner.language == "triton":
            [found] = run_triton(learner, FUNCTION, *arrays)
        else:
            out = Out(np.full(len(rows), -1, np.int32))
            sizes = [len(rows), rows[0].vocab] if learner.language == "cpp" else [rows[0].vocab]
            grid = Grid((len(rows),), THREADS, SHARED_BYTES)
            [found] = run(learner, FUNCTION, *arrays, out, *sizes, grid=grid, backwards=backwards)
    if found.shape != (len(rows),):
        raise Failed(f"token_ids has the shape {found.shape}; expected {(len(rows),)}", example=example)
    for number, row in enumerate(rows):
        if found[number] != right[number]:
            told = explain(row, int(found[number]), right[number])
            raise Failed(f"token_ids[{number}] is {told}", example=str(row))


def explain(row: Row, mine: int, right: int) -> str:
    """Return what is wrong with a token."""
    if not 0 <= mine < row.vocab:
        return f"{mine}; the vocabulary ends at {row.vocab - 1}"
    x, stays = scaled(row), staying(row)

    def place(token: int) -> str:
        return f"{token} ({int((x > x[token]).sum())} logits are higher)"

    kept = int(stays.sum())
    if row.temperature == 0:
        return f"{place(mine)}; expected {place(right)}, the lowest id of the highest"
    if not stays[mine]:
        return f"{place(mine)}, which must go; expected {place(right)}, and {kept} tokens stay"
    why = "the highest x + noise" if x[mine] != x[right] or row.noisy else "the lowest id of equals"
    return f"{place(mine)}; expected {place(right)}, {why} of the {kept} tokens that stay"


def grid_logits(vocab: int, seed: int, *, spread: float = 4.0, ties: bool = False) -> Array:
    """Multiples of STEP around 0, all different unless `ties`."""
    rng = np.random.default_rng(seed)
    logits = np.round(spread * rng.standard_normal(vocab) / STEP).astype(np.int64)
    if not ties:
        order = np.argsort(logits, kind="stable")
        logits[order] = np.maximum.accumulate(logits[order] - np.arange(vocab)) + np.arange(vocab)
    return (logits * STEP).astype(np.float32)


def share_of(row: Row, count: int) -> float:
    """Return a top_p for which the `count` highest different values stay: in the middle between two shares."""
    x = scaled(row)
    kept = np.isfinite(x) if not row.top_k else x >= np.sort(x)[::-1][row.top_k - 1]
    _, shares = shares_of(x[kept])
    clear = [i for i in range(len(shares)) if shares[i] - (shares[i - 1] if i else 0) > 4e-4]
    at = clear[min(count, len(clear)) - 1]
    return float((shares[at] + (shares[at - 1] if at else 0)) / 2)


def edges(row: Row) -> list[Row]:
    """Return the row with the lowest token that stays boosted, then with the highest that goes boosted as well."""
    x, stays = scaled(row), staying(row)
    last = int(np.flatnonzero(stays & (x == x[stays].min()))[-1])
    found = [Row(**{**vars(row), "boosts": (last,)})]
    if (~stays & np.isfinite(x)).any():
        gone = int(np.flatnonzero(~stays & (x == x[~stays].max()))[0])
        found.append(Row(**{**vars(row), "boosts": (gone, last)}))
    return found


def at_the_edges(learner: Learner, row: Row, *, backwards: bool = False) -> None:
    for each in edges(row):
        compare(learner, each, backwards=backwards)


@check(LAB)
def temperature_0_is_greedy(learner: Learner) -> None:
    """Temperature 0 takes the highest logit, the lowest id of equals; noise and filters do not count."""
    compare(learner, Row([1, 3, 2, 0], 0.0, boosts=(2,)))
    compare(learner, Row([1, 3, 2, 3], 0.0, top_k=1, top_p=0.01, boosts=(3,)))


@check(LAB)
def noise_decides(learner: Learner) -> None:
    """Without filters the token with the highest x + noise wins, the lowest id of equals."""
    smallest(range(8), lambda seed: compare(learner, Row(grid_logits(40, seed, spread=1), seed=seed)))
    compare(learner, Row([0, 2, 1, 2], noisy=False))
    compare(learner, Row([0, 2, 1, 2], noisy=False, offset=-5000.0))


@check(LAB)
def temperature_flattens(learner: Learner) -> None:
    """Logits are divided by the temperature before the noise is added."""
    rows = [Row(grid_logits(40, seed), 0.25 + seed / 4, seed=seed) for seed in range(12)]
    smallest(rows, lambda row: compare(learner, row))


@check(LAB)
def top_k_keeps_k(learner: Learner) -> None:
    """The k-th highest logit stays, the next one goes."""
    rows = [Row(grid_logits(40, k), top_k=k, seed=k) for k in (1, 5, 39)]
    smallest(rows, lambda row: at_the_edges(learner, row))


@check(LAB)
def ties_with_the_kth_stay(learner: Learner) -> None:
    """Tokens whose logits equal the k-th highest all stay."""
    smallest(
        [Row([1, 2, 1, 0, 1, 1, -1, 0], top_k=2), Row([0] * 12, top_k=3), Row([3, 3, 1, 0], top_k=1)],
        lambda row: at_the_edges(learner, row),
    )


@check(LAB)
def top_p_keeps_the_crossing_token(learner: Learner) -> None:
    """The token with which the sum reaches top_p stays, the next one goes; the best one always stays."""
    compare(learner, Row([0, 3, 1, 0], top_p=1e-3, boosts=(0, 2, 3)))
    for count in (1, 2, 9):
        row = Row(grid_logits(40, count, spread=1.5), seed=count)
        at_the_edges(learner, Row(row.logits, top_p=share_of(row, count), seed=count))


@check(LAB)
def ties_at_top_p_stay_or_go_together(learner: Learner) -> None:
    """If one of several equal logits is needed to reach top_p, all of them stay."""
    at_the_edges(learner, Row([2, 1, 1, 1, 1, 0, -1, 0], top_p=0.6))
    at_the_edges(learner, Row([1, 1, 1, 1], top_p=0.1))


@check(LAB)
def top_p_is_a_share_of_what_top_k_keeps(learner: Learner) -> None:
    """top_p after top_k: the sum is that of the tokens that are left."""
    for k, count in ((3, 2), (20, 12)):
        row = Row(grid_logits(60, k, spread=1), top_k=k, seed=k)
        at_the_edges(learner, Row(row.logits, top_k=k, top_p=share_of(row, count), seed=k))


@check(LAB)
def temperature_comes_before_top_p(learner: Learner) -> None:
    """The shares are those of the scaled logits."""
    for temperature in (0.5, 2.0):
        row = Row(grid_logits(52, 3, spread=2), temperature)
        at_the_edges(learner, Row(row.logits, temperature, top_p=share_of(row, 6)))


@check(LAB)
def forbidden_tokens_never_win(learner: Learner) -> None:
    """A logit of -infinity is never drawn, also if top_k asks for more tokens than are left."""
    masked = [-np.inf, 2, -np.inf, 1, 0, -np.inf, -np.inf, -np.inf]
    smallest(
        [Row(masked, boosts=(0, 5)), Row(masked, top_k=5, boosts=(2, 4)), Row(masked, top_k=4, top_p=0.8)],
        lambda row: compare(learner, row),
    )


@check(LAB)
def large_logits(learner: Learner) -> None:
    """Logits around 5,000 and -5,000 and temperatures of 1e-5 overflow nothing."""
    logits = grid_logits(32, 5)
    share = share_of(Row(logits), 5)
    smallest(
        [Row(logits + 5000, top_p=share), Row(logits - 5000, top_p=share), Row(logits, 1e-5, top_p=0.9)],
        lambda row: at_the_edges(learner, row),
    )


@check(LAB)
def every_row_has_its_own_parameters(learner: Learner) -> None:
    """Greedy, filtered and free rows in one call."""
    logits = grid_logits(64, 11)
    rows = [Row(logits, 0.0), Row(logits, 1.0, 3), Row(logits, 2.0), Row(logits, 0.7, 0, 0.5)]
    compare(learner, *(edges(row)[-1] for row in rows))


@check(LAB)
def other_vocabularies(learner: Learner) -> None:
    """4 to 2,052 tokens: fewer and more than a block handles at once."""
    for vocab in (4, 252, 2052):
        row = Row(grid_logits(vocab, vocab, ties=True), 1.0, vocab // 2, seed=vocab)
        at_the_edges(learner, Row(row.logits, 1.0, vocab // 2, share_of(row, vocab // 8 or 1), seed=vocab))
        compare(learner, Row(row.logits, 1.0, seed=vocab))


@check(LAB)
def random_batches(learner: Learner) -> None:
    """20 random batches with ties, masks and filters; the lowest that stays and the next are boosted."""
    rng = Random(13)
    for seed in range(20):
        vocab, rows = 4 * rng.randint(1, 60), []
        for place in range(1 + seed % 2):
            logits = grid_logits(vocab, 2 * seed + place, spread=rng.choice([0.2, 1, 4]), ties=True)
            logits[rng.sample(range(1, vocab), rng.choice([0, vocab // 3]))] = -np.inf
            row = Row(logits, rng.choice([0.5, 1.0, 1.7]), rng.choice([0, rng.randint(1, vocab)]), seed=seed)
            share = rng.choice([1.0, share_of(row, rng.randint(1, vocab))])
            rows.append(rng.choice(edges(Row(**{**vars(row), "top_p": share}))))
        compare(learner, *rows)


@check("cpp-top-k-top-p")
@check("triton-top-k-top-p")
def any_vocabulary(learner: Learner) -> None:
    """Sizes that are no multiple of a vector or a block."""
    for vocab in (1, 33, 127, 1025):
        row = Row(grid_logits(vocab, vocab), 1.0, (vocab + 1) // 2, seed=vocab)
        at_the_edges(learner, Row(row.logits, 1.0, row.top_k, share_of(row, vocab // 8 or 1), seed=vocab))


@check("cpp-top-k-top-p")
def a_large_vocabulary(learner: Learner) -> None:
    """50,000 tokens, all different, or with many ties; most far below the peak, or all close to it."""
    for spread, ties in ((8.0, False), (0.05, True), (1.0, True)):
        logits = grid_logits(50_000, 9, spread=spread, ties=ties)
        for top_k, top_p in ((0, 0.95), (40, 0.95), (20_000, 1.0)):
            for boosted in edges(Row(logits, 1.0, top_k, top_p)):
                compare(learner, boosted)


@check("cuda-top-k-top-p")
def threads_run_in_any_order(learner: Learner) -> None:
    """The result stays the same if the threads of a block run from the last to the first."""
    for seed in range(3):
        row = Row(grid_logits(700, seed), 1.0, 60, 0.8, seed=seed)
        at_the_edges(learner, row, backwards=True)
        compare(learner, Row(row.logits, 0.0), Row(row.logits, seed=seed), backwards=True)


check_accesses(
    LAB,
    lambda learner, vocab: compare(learner, Row(grid_logits(vocab, vocab), 1.0, (vocab + 1) // 2, 0.9)),
    cpp=[1, 7, 33, 100],
    cuda=[4, 36, 252],
    triton=[1, 7, 33, 100],
    launches={
        "a row of 4,096 logits, top_k 60, top_p 0.8": lambda learner: compare(
            learner, Row(grid_logits(4_096, 1), 1.0, 60, 0.8)
        ),
    },
)
