"""Checks of the lab speculative-verifier: rules one by one, exact enumeration, a second opinion."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, product
from random import Random
from typing import Any

from lessons.course.checking import Failed, Learner, check, smallest

LAB = "speculative-verifier"
GRID = 40
"""Uniforms are the midpoints of so many cells; all probabilities of enumerated cases are multiples of 1 / GRID."""
CELLS = [(2 * cell + 1) / (2 * GRID) for cell in range(GRID)]
Weights = list[float]


def same(yours: Any, right: Any, shown: str) -> None:
    if yours != right:
        raise Failed(f"{shown} returned {yours!r}; by the rules it is {right!r}", example=shown)


def pick(weights: Sequence[float], u: float) -> int:
    """Second opinion about `draw`, in fractions."""
    sums = list(accumulate(map(Fraction, weights)))
    return bisect_right(sums, Fraction(u) * sums[-1])


def expected(
    drafts: Sequence[int], qs: Sequence[Weights | None], ps: Sequence[Weights], us: Sequence[float]
) -> list[int]:
    """Second opinion about `verify`, in fractions: the number of kept drafts first, then the token behind them."""
    full = [
        [Fraction(int(token == draft)) for token in range(len(ps[0]))]
        if q is None
        else list(map(Fraction, q))
        for draft, q in zip(drafts, qs, strict=True)
    ]
    passed = [Fraction(us[i]) * full[i][x] < Fraction(ps[i][x]) for i, x in enumerate(drafts)]
    kept = passed.index(False) if False in passed else len(drafts)
    weights = [Fraction(p) for p in ps[kept]]
    if kept < len(drafts):
        weights = [max(p - q, Fraction(0)) for p, q in zip(weights, full[kept], strict=True)]
    return [*drafts[:kept], pick([*map(float, weights)], us[-1])]


def verified(
    learner: Learner, drafts: Any, qs: Any, ps: Any, us: Any, right: list[int] | None = None
) -> None:
    shown = f"verify({drafts}, {qs}, {ps}, {us})"
    same(learner.call("verify", drafts, qs, ps, us), right or expected(drafts, qs, ps, us), shown)


@check(LAB)
def draw_is_the_inverse_of_the_sums(learner: Learner) -> None:
    """`draw` returns the first token whose running sum exceeds u, for every u."""
    for u in (0.0, 0.1, 0.2, 0.45, 0.5, 0.75, 0.99):
        weights = [0.25, 0.25, 0.0, 0.5]
        same(learner.call("draw", weights, u), pick(weights, u), f"draw({weights}, {u})")


@check(LAB)
def draw_takes_any_sum(learner: Learner) -> None:
    """Weights need not have sum 1, and a token of weight 0 never comes out, at both ends of u."""
    for weights, u, right in (
        ([0.0, 0.125, 0.125], 0.0, 1),
        ([0.125, 0.0, 0.125], 0.5, 2),
        ([1.0, 3.0, 0.0], 0.9999999, 1),
        ([0.0, 0.1, 0.2, 0.0], 1 - 2**-53, 2),
    ):
        same(learner.call("draw", weights, u), right, f"draw({weights}, {u})")


@check(LAB)
def residual_is_what_is_missing(learner: Learner) -> None:
    """max(p - q, 0) for each token; p without the draft if the drafter has no probabilities."""
    p, q = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]
    same(learner.call("residual", p, q, 1), [0.25, 0.0, 0.0], f"residual({p}, {q}, 1)")
    same(learner.call("residual", p, None, 0), [0.0, 0.25, 0.25], f"residual({p}, None, 0)")
    same(learner.call("residual", p, p, 2), p, f"residual({p}, {p}, 2)")
    certain = [0.0, 1.0, 0.0]
    same(learner.call("residual", certain, None, 1), certain, f"residual({certain}, None, 1)")


@check(LAB)
def a_likely_draft_is_kept(learner: Learner) -> None:
    """A draft that the target likes better than the drafter is kept for every u."""
    for u in (0.0, 0.5, 0.999):
        verified(learner, [0], [[0.25, 0.75]], [[0.5, 0.5], [0.0, 1.0]], [u, 0.5], [0, 1])


@check(LAB)
def an_unlikely_draft_is_kept_in_proportion(learner: Learner) -> None:
    """A draft with p < q is kept while u < p / q."""
    for u in (0.1, 0.24, 0.26, 0.9):
        verified(learner, [1], [[0.5, 0.5]], [[0.875, 0.125], [1.0, 0.0]], [u, 0.9])


@check(LAB)
def the_first_refusal_ends_the_step(learner: Learner) -> None:
    """Drafts behind a refused one are lost, even those that would be kept."""
    q, p = [0.5, 0.5], [0.75, 0.25]
    verified(learner, [0, 1, 0], [q, q, q], [p, p, p, p], [0.1, 0.9, 0.1, 0.3])
    verified(learner, [1, 0, 0], [q, q, q], [p, p, p, p], [0.9, 0.1, 0.1, 0.3])


@check(LAB)
def one_more_token_after_all(learner: Learner) -> None:
    """If all drafts are kept, one more token comes from the target's last distribution; also without any draft."""
    q = [0.5, 0.5]
    verified(learner, [0, 1], [q, q], [q, q, [0.0, 1.0]], [0.3, 0.6, 0.2], [0, 1, 1])
    verified(learner, [], [], [[0.25, 0.75]], [0.5], [1])


@check(LAB)
def zeros(learner: Learner) -> None:
    """A draft with p = 0 is refused even with u = 0; one with q = 0 is no division by zero."""
    verified(learner, [1], [[0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]], [0.0, 0.5], [0])
    verified(learner, [1], [[1.0, 0.0]], [[0.5, 0.5], [1.0, 0.0]], [0.9, 0.5], [1, 0])


@check(LAB)
def drafts_without_probabilities(learner: Learner) -> None:
    """A drafter that is certain: the draft is kept with probability p, else a token of p without it."""
    for u in (0.1, 0.49, 0.51, 0.9):
        verified(learner, [1], [None], [[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]], [u, 0.6])


def distributions(size: int, rng: Random) -> Weights:
    """Return a distribution of multiples of 1 / GRID."""
    cuts = sorted(rng.randint(0, GRID) for _ in range(size - 1))
    return [(b - a) / GRID for a, b in zip([0, *cuts], [*cuts, GRID], strict=True)]


@check(LAB)
def nothing_is_lost(learner: Learner) -> None:
    """The first token has the target's distribution: every draft of q, every u and every draw, counted."""
    rng = Random(5)

    def run(case: tuple[Weights, Weights]) -> None:
        q, p = case
        totals = [0.0] * len(p)
        for draft in range(len(q)):
            if not q[draft]:
                continue
            for u in CELLS:
                [first, *_] = learner.call("verify", [draft], [q], [p, p], [u, 0.5])
                if first == draft:
                    totals[first] += q[draft] / GRID
                    continue
                for token in _recovered(learner, draft, q, p, u):
                    totals[token] += q[draft] / GRID**2
        for token, (found, wanted) in enumerate(zip(totals, p, strict=True)):
            if abs(found - wanted) > 1.5 / GRID:
                raise Failed(
                    f"token {token} comes out with probability {found:.3f}; the target gives it {wanted:.3f}",
                    example=f"q = {q}, p = {p}",
                )

    smallest([(distributions(3, rng), distributions(3, rng)) for _ in range(4)], run)


def _recovered(learner: Learner, draft: int, q: Weights, p: Weights, u: float) -> Iterator[int]:
    """Yield the token behind a refusal for every draw."""
    for s in CELLS:
        yield learner.call("verify", [draft], [q], [p, p], [u, s])[0]


@check(LAB)
def random_chains(learner: Learner) -> None:
    """200 random chains of up to five drafts, some without probabilities."""
    rng = Random(8)

    def run(count: int) -> None:
        size = rng.randint(2, 5)
        qs: list[Weights | None] = [rng.choice([None, distributions(size, rng)]) for _ in range(count)]
        ps = [distributions(size, rng) for _ in range(count + 1)]
        drafts = [rng.choice([x for x in range(size) if q is None or q[x]]) for q in qs]
        us = [rng.random() for _ in range(count + 1)]
        verified(learner, drafts, qs, ps, us)

    smallest([1 + number // 40 for number in range(200)], run)


@check(LAB)
def every_pair_of_uniforms(learner: Learner) -> None:
    """Two drafts, all pairs of eight uniforms: kept, refused first, refused second."""
    q, p = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]
    for first, second in product([(2 * cell + 1) / 16 for cell in range(8)], repeat=2):
        verified(learner, [0, 0], [q, q], [p, p, p], [first, second, 0.4])
