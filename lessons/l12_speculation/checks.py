"""Checks of lesson 12: prompt lookup, rejection sampling, and the arithmetic of the speed-up."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate
from random import Random
from typing import Any

from lessons.course.checking import Failed, Learner, check, smallest

Rows = list[list[float]]


def compare_drafts(
    learner: Learner, tokens: list[int], num_drafts: int, max_ngram: int, wanted: list[int]
) -> None:
    found = learner.call("propose", tokens, num_drafts, max_ngram)
    if found != wanted:
        what = f"propose({tokens}, num_drafts={num_drafts}, max_ngram={max_ngram})"
        raise Failed(f"the drafts are {found}; expected {wanted}", example=what)


@check("12.1")
def drafts_follow_the_earlier_ending(learner: Learner) -> None:
    """The drafts are the tokens that followed the ending before."""
    compare_drafts(learner, [7, 8], 2, 2, [])
    compare_drafts(learner, [7, 8, 7], 1, 3, [8])
    compare_drafts(learner, [1, 2, 3, 4, 5, 9, 2, 3], 3, 3, [4, 5, 9])


@check("12.1")
def the_longest_ending_counts_first(learner: Learner) -> None:
    """A longer ending beats a more recent short one; at most max_ngram tokens are compared."""
    tokens = [1, 2, 3, 40, 3, 50, 1, 2, 3]
    compare_drafts(learner, tokens, 1, 3, [40])
    compare_drafts(learner, tokens, 1, 1, [50])
    compare_drafts(learner, [9, 1, 2, 60, 8, 1, 2, 70, 9, 1, 2], 1, 2, [70])
    compare_drafts(learner, [9, 1, 2, 60, 8, 1, 2, 70, 9, 1, 2], 1, 3, [60])


@check("12.1")
def the_most_recent_match_counts(learner: Learner) -> None:
    """The last of several earlier occurrences counts."""
    compare_drafts(learner, [5, 10, 5, 20, 5, 30, 5], 1, 1, [30])
    compare_drafts(learner, [1, 2, 10, 1, 2, 20, 1, 2], 1, 4, [20])


@check("12.1")
def no_more_than_num_drafts(learner: Learner) -> None:
    """At most num_drafts drafts; fewer if the text ends; none if num_drafts is 0."""
    tokens = [1, 2, 3, 4, 1]
    for num_drafts, wanted in ((0, []), (1, [2]), (3, [2, 3, 4]), (9, [2, 3, 4, 1])):
        compare_drafts(learner, tokens, num_drafts, 2, wanted)


@check("12.1")
def matches_may_overlap(learner: Learner) -> None:
    """An occurrence may overlap the ending, but is not the ending itself."""
    compare_drafts(learner, [4, 4], 3, 2, [4])
    compare_drafts(learner, [4, 4, 4], 3, 2, [4])
    compare_drafts(learner, [4, 4, 4, 4], 3, 3, [4])
    compare_drafts(learner, [1, 2, 1, 2, 1], 2, 3, [2, 1])


@check("12.1")
def text_without_repeats_has_no_drafts(learner: Learner) -> None:
    """No drafts for a text that is new, has one token, or is empty."""
    for tokens in ([], [3], [3, 4], list(range(30))):
        compare_drafts(learner, tokens, 4, 3, [])


@check("12.1")
def random_texts_equal_a_search_by_hand(learner: Learner) -> None:
    """On 100 random texts the drafts equal those of a search that tries everything."""

    def run(case: int) -> None:
        rng = Random(case)
        tokens = [rng.randrange(2 + case % 4) for _ in range(case // 4)]
        num_drafts, max_ngram = rng.randint(1, 5), rng.randint(1, 4)
        found = [
            (size, start)
            for size in range(1, max_ngram + 1)
            for start in range(len(tokens) - size)
            if tokens[start : start + size] == tokens[len(tokens) - size :]
        ]
        size, start = max(found, default=(0, len(tokens)))
        compare_drafts(learner, tokens, num_drafts, max_ngram, tokens[start + size :][:num_drafts])

    smallest(range(100), run)


TARGET = [0.5, 0.3, 0.15, 0.05, 0.0]
DRAFT = [0.1, 0.2, 0.3, 0.3, 0.1]


def accepted(
    learner: Learner, drafts: list[int], target: Rows, draft: Rows, uniforms: list[float]
) -> list[int]:
    """Return the learner's tokens after a look at their form."""
    found = learner.call("accept", drafts, target, draft, uniforms)
    if not isinstance(found, list) or any(type(token) is not int for token in found) or not found:
        raise Failed(f"the result is {found!r}; expected a list of at least one token")
    return found


def compare_tokens(
    learner: Learner, drafts: list[int], target: Rows, draft: Rows, uniforms: list[float], wanted: list[int]
) -> None:
    found = accepted(learner, drafts, target, draft, uniforms)
    if found != wanted:
        example = f"drafts {drafts}, target_probs {target}, draft_probs {draft}, uniforms {uniforms}"
        raise Failed(f"the tokens are {found}; expected {wanted}", example=example)


@check("12.2")
def without_drafts_it_is_plain_sampling(learner: Learner) -> None:
    """k = 0: one token of the target by inverse CDF, as without speculation."""
    rng = Random(122)
    sums = list(accumulate(TARGET))
    for uniform in (0.0, 0.49, 0.51, 0.79, 0.81, 0.94, 0.96, *(rng.random() for _ in range(30))):
        compare_tokens(learner, [], [TARGET], [], [uniform], [bisect_right(sums, uniform)])


@check("12.2")
def acceptance_is_the_ratio(learner: Learner) -> None:
    """A draft is accepted exactly if its uniform is below p / q; always if p is at least q."""
    last = [0.0, 0.0, 0.0, 0.0, 1.0]
    for token in range(5):
        ratio = TARGET[token] / DRAFT[token]
        for uniform in (0.0, 0.1, 0.3, 0.4, 0.6, 0.9, 0.999):
            is_accepted = uniform < ratio
            found = accepted(learner, [token], [TARGET, last], [DRAFT], [uniform, 0.2])
            if (found == [token, 4]) != is_accepted:
                what = "accepted" if is_accepted else "rejected"
                raise Failed(
                    f"p / q is {ratio:.3g} and the uniform {uniform}: expected the draft {what}, got {found}",
                    example=f"draft {token}, p {TARGET}, q {DRAFT}",
                )


@check("12.2")
def a_rejection_draws_from_the_residual(learner: Learner) -> None:
    """The token in place of a rejected draft is drawn from max(0, p - q), by inverse CDF."""
    weights = [0.4, 0.1]  # max(0, p - q) of tokens 0 and 1; the others have none
    for uniform in (0.0, 0.3, 0.6, 0.79, 0.81, 0.99):
        wanted = [0 if uniform < weights[0] / sum(weights) else 1]
        compare_tokens(learner, [3], [TARGET, TARGET], [DRAFT], [0.9, uniform], wanted)


@check("12.2")
def the_first_rejection_ends_the_step(learner: Learner) -> None:
    """Drafts behind a rejected one are dropped, even if they would be accepted."""
    certain = [[1.0 if token == each else 0.0 for token in range(5)] for each in range(5)]
    target = [certain[1], certain[2], certain[3], certain[4]]
    for drafts, wanted in (
        ([1, 2, 3], [1, 2, 3, 4]),
        ([1, 0, 3], [1, 2]),
        ([0, 2, 3], [1]),
        ([1, 2, 0], [1, 2, 3]),
    ):
        compare_tokens(
            learner, drafts, target, [certain[each] for each in drafts], [0.5, 0.5, 0.5, 0.5], wanted
        )


@check("12.2")
def all_accepted_gives_one_more(learner: Learner) -> None:
    """If every draft is accepted the extra token comes from the last row of target_probs."""
    last = [0.0, 0.25, 0.25, 0.25, 0.25]
    for uniform, token in ((0.0, 1), (0.3, 2), (0.6, 3), (0.9, 4)):
        compare_tokens(
            learner, [0, 0], [TARGET, TARGET, last], [DRAFT, DRAFT], [0.9, 0.9, uniform], [0, 0, token]
        )


@check("12.2")
def the_output_is_distributed_as_the_target(learner: Learner) -> None:
    """Over 2,500 seeded draws each of the first two tokens is within 0.04 of the target in total variation."""
    rng = Random(1222)
    after = [[0.1, 0.2, 0.3, 0.4, 0.0], [0.0, 0.0, 0.5, 0.25, 0.25], [0.9, 0.1, 0.0, 0.0, 0.0], DRAFT, TARGET]
    counts: list[list[float]] = [[0.0] * 5 for _ in range(2)]
    num_draws = 2_500
    for _ in range(num_draws):
        first, second = (rng.choices(range(5), DRAFT)[0] for _ in range(2))
        uniforms = [rng.random() for _ in range(3)]
        tokens = accepted(learner, [first, second], [TARGET, after[first], TARGET], [DRAFT, DRAFT], uniforms)
        if len(tokens) == 1:
            tokens.append(rng.choices(range(5), after[tokens[0]])[0])  # the next step gives it
        for place in range(2):
            counts[place][tokens[place]] += 1 / num_draws
    second_target = [sum(p * row[token] for p, row in zip(TARGET, after, strict=True)) for token in range(5)]
    for name, found, wanted in zip(("first", "second"), counts, (TARGET, second_target), strict=True):
        distance = sum(abs(a - b) for a, b in zip(found, wanted, strict=True)) / 2
        if distance > 0.04:
            shown = [[round(each, 3) for each in row] for row in (found, wanted)]
            raise Failed(
                f"the {name} token is {distance:.3f} away from the target in total variation",
                example=f"drawn {shown[0]}, target {shown[1]}",
            )


def expect(found: Any, wanted: float, what: str) -> None:
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise Failed(f"{what} is {found!r}; expected a number")
    if not math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-12):
        raise Failed(f"{what} is {found:.6g}; expected {wanted:.6g}", example=what)


def count_tokens(alpha: float, k: int) -> float:
    """Return the mean over all patterns of right and wrong drafts, one by one."""
    mean = 0.0
    for pattern in range(2**k):
        right = [bool(pattern >> place & 1) for place in range(k)]
        chance = math.prod(alpha if each else 1 - alpha for each in right)
        mean += chance * (1 + (right.index(False) if False in right else k))
    return mean


@check("12.3")
def tokens_until_the_first_wrong_draft(learner: Learner) -> None:
    """The mean equals that over all patterns of right and wrong drafts."""
    for k in range(9):
        for alpha in (0.0, 0.3, 0.7, 0.95):
            wanted = count_tokens(alpha, k)
            expect(learner.call("expected_tokens", alpha, k), wanted, f"expected_tokens({alpha}, {k})")


@check("12.3")
def certain_drafts_divide_nothing_by_zero(learner: Learner) -> None:
    """alpha = 1 gives k + 1 tokens."""
    for k in (0, 1, 4):
        expect(learner.call("expected_tokens", 1.0, k), k + 1, f"expected_tokens(1.0, {k})")


@check("12.3")
def a_step_costs_drafts_and_verification(learner: Learner) -> None:
    """The speed-up is tokens per step over (k drafts + one verification), in units of a plain step."""
    for alpha, k, cost, verify in (
        (0.5, 1, 0.0, 1.0),
        (0.8, 4, 0.1, 1.0),
        (0.8, 4, 0.1, 1.3),
        (0.2, 6, 0.3, 2.0),
    ):
        wanted = count_tokens(alpha, k) / (cost * k + verify)
        expect(
            learner.call("speedup", alpha, k, cost, verify),
            wanted,
            f"speedup({alpha}, {k}, {cost}, {verify})",
        )
    expect(learner.call("speedup", 0.5, 1, 0.5), 1.0, "speedup(0.5, 1, 0.5)")


@check("12.3")
def no_drafts_no_change(learner: Learner) -> None:
    """k = 0 is the plain engine: exactly 1, whatever the other figures are."""
    for verify in (1.0, 1.4):
        expect(learner.call("speedup", 0.9, 0, 0.2, verify), 1.0, f"speedup(0.9, 0, 0.2, {verify})")


@check("12.3")
def best_k_wins_or_stays_at_zero(learner: Learner) -> None:
    """best_k has the largest speed-up, is 0 if drafts never pay, and the smallest of equal ones."""
    cases: list[tuple[float, float, list[float]]] = [
        (0.0, 0.1, [1.0] * 4), (0.3, 0.5, [1.0] * 6), (0.5, 0.5, [1.0, 1.0]), (0.8, 0.1, [1.0] * 10),
        (0.8, 0.02, [1.0, 1.1, 1.2, 1.4, 1.8, 2.6, 4.0]), (0.0, 0.0, [1.0] * 4), (0.9, 0.05, [1.0]),
        (0.9, 0.0, [1.0, 1.9, 2.8, 3.7]), (1.0, 0.0, [1.0] * 8),
    ]  # fmt: skip
    for alpha, cost, verify_of in cases:
        rates = [count_tokens(alpha, k) / (k * cost + verify) for k, verify in enumerate(verify_of)]
        wanted = next(k for k, rate in enumerate(rates) if rate > max(rates) - 1e-12)
        found = learner.call("best_k", alpha, cost, verify_of)
        if found != wanted:
            example = f"alpha {alpha}, cost {cost}, verify_of {verify_of}"
            raise Failed(f"best_k is {found!r}; expected {wanted}", example=example)
