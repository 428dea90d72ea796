"""Checks of the lab speculative-verifier: single rules, exact distributions on a grid, the engine's verifier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, product
from random import Random
from typing import TYPE_CHECKING, Any

from lessons.course.checking import Failed, Learner, check, refused, smallest

if TYPE_CHECKING:  # it imports torch, which takes a second: only the last check needs it
    from engine.sample.processors import SampleBatch

LAB = "speculative-verifier"
Table = Sequence[Sequence[float]]


# -- a second opinion, in fractions


def expected(
    drafts: Sequence[int], draft_probs: Table | None, target_probs: Table, u: Sequence[float]
) -> list[int]:
    """Return what the rules ask for: the first position that ends the output, then a search among cumulative sums."""
    exact = [[Fraction(each) for each in row] for row in target_probs]
    if draft_probs is None:
        proposed = [[Fraction(int(t == draft)) for t in range(len(exact[0]))] for draft in drafts]
    else:
        proposed = [[Fraction(each) for each in row] for row in draft_probs]
    refused = [
        place
        for place, draft in enumerate(drafts)
        if Fraction(u[place]) * proposed[place][draft] >= exact[place][draft]
    ]
    end = min(refused, default=len(drafts))
    weights = exact[end]
    if refused:
        owed = [p - min(p, q) for p, q in zip(exact[end], proposed[end], strict=True)]
        weights = owed if sum(owed) else weights
    bound = Fraction(u[-1]) * sum(weights)
    beyond = [token for token, mass in enumerate(accumulate(weights)) if mass > bound]
    return [*drafts[:end], beyond[0]]


def compare(
    learner: Learner,
    drafts: Sequence[int],
    draft_probs: Table | None,
    target_probs: Table,
    uniforms: Sequence[float],
) -> None:
    """Raise Failed if the learner's tokens are not those of the rules."""
    yours = learner.call("verify", drafts, draft_probs, target_probs, uniforms)
    right = expected(drafts, draft_probs, target_probs, uniforms)
    if yours != right:
        raise Failed(
            f"returned {yours!r}; by the rules it is {right}",
            example=f"verify({drafts}, {draft_probs}, {target_probs}, {uniforms})",
        )


# -- single rules

P = [0.2, 0.3, 0.5]
Q = [0.5, 0.3, 0.2]
BONUS = [0.1, 0.6, 0.3]


@check(LAB)
def a_draft_is_accepted_by_its_ratio(learner: Learner) -> None:
    """A draft is accepted if u * q < p: always where the target finds it as likely, else with probability p / q."""
    for draft in range(3):
        for u in (0.0, 0.3, 0.39, 0.41, 0.7, 0.999999):
            compare(learner, [draft], [Q], [P, BONUS], [u, 0.05])


@check(LAB)
def a_certain_no_is_no(learner: Learner) -> None:
    """A draft that the target finds impossible is rejected, even by u = 0; one with q = 0 and p > 0 is accepted."""
    compare(learner, [0], [[1.0, 0.0]], [[0.0, 1.0], [0.5, 0.5]], [0.0, 0.5])
    compare(learner, [0], [[0.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]], [0.9, 0.2])
    compare(learner, [0], [[0.0, 1.0]], [[0.0, 1.0], [0.5, 0.5]], [0.0, 0.2])


@check(LAB)
def the_residual_replaces_a_rejected_draft(learner: Learner) -> None:
    """After a rejection one token is drawn from max(0, p - q), scaled to sum 1, and the output ends."""
    q, p = [0.6, 0.3, 0.1, 0.0], [0.2, 0.1, 0.3, 0.4]  # owed: 0.2 to token 2, 0.4 to token 3
    for last in (0.0, 0.2, 0.33, 0.34, 0.5, 0.999):
        compare(learner, [0, 3], [q, q], [p, p, p], [0.9, 0.0, last])
    compare(learner, [2, 0, 3], [q, q, q], [p, p, p, p], [0.5, 0.8, 0.0, 0.9])


@check(LAB)
def the_bonus_comes_from_the_last_target(learner: Learner) -> None:
    """If all drafts are accepted, one token more is drawn from target_probs[k]; without drafts it is the only one."""
    for last in (0.0, 0.09, 0.11, 0.5, 0.71, 0.999999):
        compare(learner, [], [], [BONUS], [last])
        compare(learner, [2], [Q], [P, BONUS], [0.5, last])
        compare(learner, [2, 1], [Q, Q], [P, P, BONUS], [0.1, 0.1, last])


@check(LAB)
def each_position_has_its_own_numbers(learner: Learner) -> None:
    """Position i uses uniforms[i], draft_probs[i] and target_probs[i]; the last uniform draws the token at the end."""
    draft_probs, targets = (
        [[0.8, 0.2], [0.4, 0.6], [0.5, 0.5]],
        [[0.4, 0.6], [0.3, 0.7], [0.1, 0.9], [0.5, 0.5]],
    )
    for uniforms in product((0.1, 0.45, 0.7), repeat=3):
        compare(learner, [0, 0, 0], draft_probs, targets, [*uniforms, 0.4])
        compare(learner, [0, 1, 0], draft_probs, targets, [*uniforms, 0.6])


@check(LAB)
def drafts_without_probabilities(learner: Learner) -> None:
    """A draft without probabilities is accepted with probability p; the residual is p without the draft."""
    for u in (0.1, 0.29, 0.31, 0.9):
        for last in (0.0, 0.28, 0.3, 0.9):
            compare(learner, [1], None, [P, BONUS], [u, last])
    compare(learner, [1, 2, 0], None, [P, P, P, BONUS], [0.2, 0.4, 0.6, 0.5])


@check(LAB)
def rounding_leaves_a_token(learner: Learner) -> None:
    """If rounding leaves no residual the target decides; a token of weight 0 is never drawn."""
    p, q, almost_one = [0.3, 0.7, 0.0], [0.3 + 1e-12, 0.7, 0.0], 1 - 1e-15
    for last in (0.1, 0.5):
        compare(learner, [0], [q], [p, p], [almost_one, last])
    thirds = [0.0, 0.1, 0.1, 0.1, 0.0]
    compare(learner, [], [], [thirds], [0.0])
    compare(learner, [], [], [thirds], [0.9999999999999999])
    compare(learner, [], None, [[0.0, 0.0, 1.0]], [0.5])


@check(LAB)
def a_draft_at_its_bound_is_rejected(learner: Learner) -> None:
    """A draft is accepted if u * q is less than p; if they are equal, it is not."""
    halves, quarters = [0.5, 0.5], [0.25, 0.75]
    compare(learner, [0], [halves], [quarters, quarters], [0.5, 0.0])
    compare(learner, [0], [quarters], [[0.125, 0.875], quarters], [0.5, 0.0])
    compare(learner, [1], None, [halves, quarters], [0.5, 0.0])


@check(LAB)
def a_sum_at_its_bound_is_not_enough(learner: Learner) -> None:
    """A draw takes the lowest id at which the sum exceeds u times the total; if they are equal, it goes on."""
    weights = [0.25, 0.25, 0.0, 0.5]
    for last in (0.25, 0.5):
        compare(learner, [], [], [weights], [last])
        compare(learner, [0], [[1.0, 0.0, 0.0, 0.0]], [[0.0, 0.25, 0.25, 0.5], weights], [0.5, last])


@check(LAB)
def lengths_must_fit(learner: Learner) -> None:
    """Another number of distributions or uniforms than k or k + 1 raises ValueError."""
    for draft_probs, targets, uniforms in (
        ([Q], [P], [0.5, 0.5]),
        ([Q], [P, P], [0.5]),
        ([Q, Q], [P, P], [0.5, 0.5]),
        ([], [P, P], [0.5, 0.5]),
        (None, [P, P, P], [0.5, 0.5]),
    ):
        args = [0], draft_probs, targets, uniforms
        refused(f"verify{args}", learner.call, "verify", *args)


@check(LAB)
def random_steps(learner: Learner) -> None:
    """300 random steps with up to 5 drafts: the tokens are those of the rules."""
    rng = Random(5)

    def run(k: int) -> None:
        size = rng.randint(2, 6)
        draft_probs = [some_distribution(rng, size) for _ in range(k)]
        targets = [some_distribution(rng, size, near) for near in [*draft_probs, None]]
        drafts = [rng.choices(range(size), row)[0] for row in draft_probs]
        told = None if rng.random() < 0.2 else draft_probs
        compare(learner, drafts, told, targets, [rng.random() for _ in range(k + 1)])

    smallest([number // 60 + 1 for number in range(300)], run)


def some_distribution(rng: Random, size: int, near: Sequence[float] | None = None) -> list[float]:
    """Return random probabilities, some of them 0; near: one that they resemble."""
    weights = [rng.choice([0.0, rng.random(), rng.random()]) for _ in range(size)]
    weights[rng.randrange(size)] += 0.1
    if near is not None:
        weights = [weight / 3 + each for weight, each in zip(weights, near, strict=True)]
    return [weight / sum(weights) for weight in weights]


# -- exact distributions: all combinations of uniforms on a grid on which every threshold lies between two points

SIXTHS = [Fraction(each, 6) for each in range(7)]
Law = dict[tuple[int, ...], Fraction]
"""Output -> its probability."""


def sixths(*numerators: int) -> list[Fraction]:
    return [SIXTHS[each] for each in numerators]


def law(
    learner: Learner,
    draft_of: dict[tuple[int, ...], list[Fraction]],
    target_of: Any,
    k: int,
    told: bool = True,
) -> Law:
    """Return the distribution of the output over drafts drawn from `draft_of` and uniforms on the grid.

    draft_of: context -> q. target_of: context -> p. told: pass draft_probs.
    """
    grid = [(point + 0.5) / 6 for point in range(6)]
    found: Law = defaultdict(Fraction)
    for drafts, chance in drafted(draft_of, (), k):
        contexts = [drafts[:place] for place in range(k + 1)]
        q = [[float(each) for each in draft_of[context]] for context in contexts[:-1]] if told else None
        p = [[float(each) for each in target_of(context)] for context in contexts]
        for uniforms in product(grid, repeat=k + 1):
            yours = learner.call("verify", list(drafts), q, p, list(uniforms))
            if not isinstance(yours, list) or not 1 <= len(yours) <= k + 1:
                raise Failed(
                    f"returned {yours!r}", example=f"verify({list(drafts)}, {q}, {p}, {list(uniforms)})"
                )
            found[tuple(yours)] += chance / len(grid) ** (k + 1)
    return found


def drafted(
    draft_of: dict[tuple[int, ...], list[Fraction]], before: tuple[int, ...], k: int
) -> Iterator[tuple[tuple[int, ...], Fraction]]:
    """Yield all sequences of k drafts with their probabilities."""
    if len(before) == k:
        yield before, Fraction(1)
        return
    for token, chance in enumerate(draft_of[before]):
        if chance:
            for drafts, rest in drafted(draft_of, (*before, token), k):
                yield drafts, chance * rest


def is_lossless(found: Law, target_of: Any, k: int, size: int) -> None:
    """Raise Failed unless each token has the target's distribution, given those before it."""
    for place in range(k + 1):
        after: Law = defaultdict(Fraction)
        longer: Law = defaultdict(Fraction)
        for output, chance in found.items():
            if len(output) > place:
                after[output[: place + 1]] += chance
                longer[output[:place]] += chance
        for context, chance in longer.items():
            yours = [after[(*context, token)] / chance for token in range(size)]
            right = target_of(context)
            if yours != right:
                raise Failed(
                    f"after {list(context)} the next token has the probabilities {said(yours)}; the target's are "
                    f"{said(right)}",
                    example=f"all drafts and all uniforms in steps of 1/6, {k} draft{'s' * (k > 1)}",
                )


def said(numbers: Sequence[Fraction]) -> str:
    return "(" + ", ".join(map(str, numbers)) + ")"


def as_often(found: Law, least: int, right: Fraction) -> None:
    """Raise Failed unless so much of the output has at least so many tokens."""
    yours = sum(chance for output, chance in found.items() if len(output) >= least)
    if yours != right:
        raise Failed(
            f"{least - 1} draft{'s are' if least > 2 else ' is'} accepted with probability {yours}; the sum of "
            f"min(p, q) allows {right}",
            example="all drafts and all uniforms in steps of 1/6",
        )


@check(LAB)
def one_draft_is_lossless(learner: Learner) -> None:
    """Over all drafts and a grid of uniforms, each token has exactly the target's distribution; none is wasted."""
    target = {
        (): sixths(2, 1, 2, 1),
        (0,): sixths(3, 0, 2, 1),
        (1,): sixths(1, 2, 3, 0),
        (2,): sixths(0, 0, 0, 6),
    }
    draft: dict[tuple[int, ...], list[Fraction]] = {(): sixths(4, 2, 0, 0)}
    found = law(learner, draft, target.__getitem__, 1)
    for output in found:
        if len(output) > 1 and not draft[()][output[0]]:
            raise Failed(f"token {output[0]} was never drafted, and yet a token follows it: {list(output)}")
    is_lossless(found, target.__getitem__, 1, 4)
    as_often(found, 2, Fraction(1, 2))


@check(LAB)
def two_drafts_are_lossless(learner: Learner) -> None:
    """The same holds for all three tokens of two drafts, each drawn after the one before."""
    draft = {(): sixths(4, 2, 0), (0,): sixths(3, 3, 0), (1,): sixths(2, 2, 2)}
    target = {(): sixths(2, 3, 1), (0,): sixths(1, 3, 2), (1,): sixths(1, 1, 4)}

    def target_of(context: tuple[int, ...]) -> list[Fraction]:
        shift = sum(context) % 3
        return target[context] if context in target else [*sixths(3, 2, 1)[shift:], *sixths(3, 2, 1)[:shift]]

    found = law(learner, draft, target_of, 2)
    is_lossless(found, target_of, 2, 3)
    as_often(found, 2, Fraction(2, 3))
    as_often(found, 3, Fraction(4, 9))


@check(LAB)
def lookups_are_lossless(learner: Learner) -> None:
    """A drafter that always proposes the same tokens, without probabilities, leaves the distribution as it is."""
    target = {(): sixths(2, 3, 1), (1,): sixths(4, 1, 1), (1, 0): sixths(0, 5, 1)}
    draft = {(): sixths(0, 6, 0), (1,): sixths(6, 0, 0)}
    found = law(learner, draft, target.__getitem__, 2, told=False)
    is_lossless(found, target.__getitem__, 2, 3)
    as_often(found, 2, Fraction(1, 2))
    as_often(found, 3, Fraction(1, 3))


# -- the engine's verifier


@check(LAB)
def the_engine_accepts_as_many(learner: Learner) -> None:
    """Behind the engine's seam, with its noise, 60 requests accept as many drafts; greedy ones get the same tokens."""
    import numpy as np
    import torch

    from engine.core.sched_output import RequestInit
    from engine.sample.draft_acceptance import RejectionVerifier, num_agreeing
    from engine.sample.processors import SampleBatch
    from engine.sample.sampler import Sampler
    from engine.sampling_params import SamplingParams

    rng, k, size, prompt, count = Random(9), 3, 8, 4, 60
    draft_probs = torch.tensor([[some_distribution(rng, size) for _ in range(k)] for _ in range(count)])
    drafts = [[rng.choices(range(size), row.tolist())[0] for row in rows] for rows in draft_probs]
    table = np.zeros((count, 16), np.int32)
    table[:, prompt : prompt + k] = drafts
    sampler = Sampler(size, count)
    for slot in range(count):
        params = SamplingParams(temperature=(0.0, 0.7, 1.0)[slot % 3], top_k=(0, 5)[slot % 2])
        sampler.add_request(slot, RequestInit([0] * prompt, prompt, params, frozenset(), seed=slot))
    width = k + 1
    batch = SampleBatch(
        np.repeat(np.arange(count), width),
        np.tile(np.arange(prompt, prompt + width), count),
        np.full(count * width, prompt),
        table,
        np.tile(np.arange(width), count),
    )
    near = [[*rows, rows[-1]] for rows in draft_probs.tolist()]
    targets = [some_distribution(rng, size, row) for rows in near for row in rows]
    logits = torch.tensor(targets).log()
    theirs = sampler(logits.clone(), batch, verifier=RejectionVerifier(lambda slot: draft_probs[slot]))
    yours = sampler(logits.clone(), batch, verifier=verifier_of(learner, drafts, draft_probs.tolist()))
    for slot, mine in enumerate(drafts):
        both = [out.token_ids[slot * width : (slot + 1) * width].tolist() for out in (yours, theirs)]
        kept = [num_agreeing(tokens, mine) for tokens in both]
        temperature = (0.0, 0.7, 1.0)[slot % 3]
        same = kept[0] == kept[1] and (temperature > 0 or both[0][: kept[0] + 1] == both[1][: kept[1] + 1])
        if not same:
            raise Failed(
                f"with your verifier {kept[0]} drafts are accepted and token {both[0][kept[0]]} follows, with the "
                f"engine's {kept[1]} and token {both[1][kept[1]]}",
                example=f"drafts {mine}, temperature {temperature}",
            )


def verifier_of(learner: Learner, drafts: list[list[int]], draft_probs: list[list[list[float]]]) -> Any:
    """Return a verifier for the engine's sampler that asks the learner's function, with the engine's noise."""
    import numpy as np
    import torch

    from engine.sample.draft_acceptance import ACCEPT_NOISE, target_probabilities
    from engine.sample.rng import row_keys

    class Learned:
        def choose(self, logits: Any, plan: Any, batch: SampleBatch, token_ids: Any) -> Any:
            bits = row_keys(plan.seeds ^ ACCEPT_NOISE, batch.lengths)[:, 0].view(np.uint32)
            uniforms = (bits + 0.5) * 2.0**-32
            target, chosen = target_probabilities(logits, plan), token_ids.clone()
            width = len(drafts[0]) + 1
            for slot, mine in enumerate(drafts):
                rows = slice(slot * width, (slot + 1) * width)
                tokens = learner.call(
                    "verify", mine, draft_probs[slot], target[rows].tolist(), uniforms[rows].tolist()
                )
                chosen[rows][: len(tokens)] = torch.tensor(tokens)
            return chosen

    return Learned()
