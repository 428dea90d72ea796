"""Checks of lesson 04: sampling."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from random import Random
from typing import Any

from lessons.course.checking import Failed, Learner, check, smallest

Case = tuple[list[float], float, int, float]


def filtered(learner: Learner, case: Case) -> list[float]:
    found = learner.call("filter_probs", *case)
    if not isinstance(found, list) or len(found) != len(case[0]):
        raise Failed(f"the result is {found!r}; expected a list of {len(case[0])} probabilities")
    if not all(isinstance(prob, int | float) and 0 <= prob <= 1 for prob in found):
        raise Failed(f"the result {found} contains values that are not probabilities")
    return found


def softmax(logits: list[float], temperature: float) -> list[float]:
    """A second road to the probabilities: differences of pairs, no shift by the peak."""
    return [
        0.0
        if logit == -math.inf
        else 1 / sum(math.exp(min(700.0, (other - logit) / temperature)) for other in logits)
        for logit in logits
    ]


def logits_of(*probs: float) -> list[float]:
    return [math.log(prob) if prob else -math.inf for prob in probs]


def support(probs: list[float]) -> list[int]:
    return [token for token, prob in enumerate(probs) if prob > 0]


def describe(case: Case) -> str:
    logits, temperature, top_k, top_p = case
    shown = [round(logit, 3) for logit in logits]
    return f"filter_probs({shown}, temperature={temperature}, top_k={top_k}, top_p={top_p})"


def expect_support(learner: Learner, case: Case, wanted: list[int]) -> None:
    found = support(filtered(learner, case))
    if found != wanted:
        raise Failed(f"tokens {found} can be drawn; expected {wanted}", example=describe(case))


@check("04.1")
def greedy_takes_the_smallest_best(learner: Learner) -> None:
    """At temperature 0 the smallest id with the largest logit gets all the probability, whatever the filters."""

    def run(logits: list[float]) -> None:
        case = (logits, 0.0, 2, 0.5)
        best = min(token for token, logit in enumerate(logits) if logit == max(logits))
        found = filtered(learner, case)
        if found != [float(token == best) for token in range(len(logits))]:
            raise Failed(f"the result is {found}; token {best} must have 1", example=describe(case))

    smallest([[0.5], [-3.0, 2.0], [2.0, 7.0, 7.0], [-math.inf, -1.0, -1.0, -5.0]], run)


@check("04.1")
def temperature_divides_the_logits(learner: Learner) -> None:
    """Without filters the result is softmax(logits / temperature), on 40 random rows."""
    rng = Random(401)

    def run(size: int) -> None:
        case = ([rng.uniform(-4, 4) for _ in range(size)], rng.choice([0.3, 0.7, 1.0, 1.9]), 0, 1.0)
        for token, (found, wanted) in enumerate(
            zip(filtered(learner, case), softmax(*case[:2]), strict=True)
        ):
            if not math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-12):
                raise Failed(
                    f"token {token} has probability {found:.6g}; expected {wanted:.6g}",
                    example=describe(case),
                )

    smallest([2 + index // 4 for index in range(40)], run)


@check("04.1")
def top_k_counts_tokens(learner: Learner) -> None:
    """top_k keeps the k most likely tokens and those that tie with the last of them; 0 keeps all."""
    logits = logits_of(0.1, 0.4, 0.05, 0.2, 0.2, 0.05)
    for top_k, wanted in ((1, [1]), (2, [1, 3, 4]), (3, [1, 3, 4]), (4, [0, 1, 3, 4]), (0, [*range(6)])):
        expect_support(learner, (logits, 1.0, top_k, 1.0), wanted)
    expect_support(learner, (logits, 1.0, 50, 1.0), [*range(6)])


@check("04.1")
def top_p_includes_the_crossing_token(learner: Learner) -> None:
    """top_p keeps the smallest set of most likely tokens whose mass reaches p, the token that crosses p included."""
    logits = logits_of(0.05, 0.5, 0.15, 0.3)
    for top_p, wanted in ((0.3, [1]), (0.6, [1, 3]), (0.9, [1, 2, 3]), (0.97, [0, 1, 2, 3])):
        expect_support(learner, (logits, 1.0, 0, top_p), wanted)


@check("04.1")
def filters_come_after_temperature(learner: Learner) -> None:
    """top_p looks at the distribution after the temperature, and at what top_k left of it."""
    logits = logits_of(0.5, 0.25, 0.125, 0.0625, 0.0625)
    expect_support(learner, (logits, 0.5, 0, 0.9), [0, 1])  # squares: 0.744, 0.186, ...
    expect_support(learner, (logits, 2.0, 0, 0.6), [0, 1, 2])  # roots: 0.325, 0.230, 0.163, ...
    expect_support(learner, (logits, 1.0, 2, 0.6), [0])  # 0.5 of 0.75 is 0.667
    expect_support(learner, (logits, 1.0, 3, 0.9), [0, 1, 2])  # 0.75 of 0.875 is 0.857


@check("04.1")
def survivors_keep_their_ratios(learner: Learner) -> None:
    """The rest is scaled to a sum of 1: the ratio of two survivors does not change. 60 random rows."""
    rng = Random(402)

    def run(size: int) -> None:
        logits = [rng.uniform(-3, 3) for _ in range(size)]
        case = (logits, rng.choice([0.5, 1.0, 1.5]), rng.randrange(size + 1), rng.uniform(0.2, 1))
        plain = softmax(*case[:2])
        ranked = sorted(range(size), key=lambda token: -plain[token])[: case[2] or size]
        whole = mass = sum(plain[token] for token in ranked)
        while len(ranked) > 1 and mass - plain[ranked[-1]] >= case[3] * whole:
            mass -= plain[ranked.pop()]
        for token, found in enumerate(filtered(learner, case)):
            wanted = plain[token] / mass if token in ranked else 0.0
            if not math.isclose(found, wanted, rel_tol=1e-7, abs_tol=1e-12):
                raise Failed(
                    f"token {token} has probability {found:.6g}; expected {wanted:.6g}",
                    example=describe(case),
                )

    smallest([2 + index // 6 for index in range(60)], run)


@check("04.1")
def extreme_logits_are_safe(learner: Learner) -> None:
    """Large logits do not overflow, a tiny temperature divides by no zero, and -inf (banned) has probability 0."""
    for case, wanted in (
        (([1000.0, 998.0], 1.0, 0, 1.0), [0, 1]),
        (([5.0, 3.0, 5.0], 1e-5, 0, 1.0), [0, 2]),
        (([-math.inf, 1.0, 0.0, -math.inf], 1.0, 3, 1.0), [1, 2]),
        (([-2000.0, -2001.0], 0.5, 0, 0.99), [0, 1]),
    ):
        expect_support(learner, case, wanted)


def penalised(learner: Learner, *args: Any, **penalties: float) -> list[float]:
    found = learner.call("apply_penalties", *args, **penalties)
    if not isinstance(found, list) or len(found) != len(args[0]):
        raise Failed(f"the result is {found!r}; expected a list of {len(args[0])} logits")
    return found


def expect_logits(learner: Learner, args: tuple[Any, ...], penalties: dict[str, float], wanted: Any) -> None:
    found = penalised(learner, *args, **penalties)
    if any(not math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) for a, b in zip(found, wanted, strict=True)):
        asked = ", ".join(f"{name}={value}" for name, value in penalties.items())
        raise Failed(
            f"the logits are {found}; expected {list(wanted)}",
            example=f"apply_penalties({', '.join(map(str, args))}, {asked})",
        )


ROW = [3.0, 2.0, -1.0, 0.5]


@check("04.2")
def defaults_change_nothing(learner: Learner) -> None:
    """The logits stay the same with the defaults."""
    expect_logits(learner, (ROW, [0, 2], [1, 1]), {}, ROW)


@check("04.2")
def repetition_lowers_both_signs(learner: Learner) -> None:
    """Repetition divides a positive logit and multiplies a negative one: both become less likely."""
    expect_logits(learner, (ROW, [], [0, 2]), {"repetition": 2.0}, [1.5, 2.0, -2.0, 0.5])
    expect_logits(learner, (ROW, [], [0, 2]), {"repetition": 0.5}, [6.0, 2.0, -0.5, 0.5])


@check("04.2")
def repetition_sees_the_prompt(learner: Learner) -> None:
    """Repetition counts tokens of the prompt, too; a token in both places is penalised once."""
    expect_logits(learner, (ROW, [0, 1], []), {"repetition": 2.0}, [1.5, 1.0, -1.0, 0.5])
    expect_logits(learner, (ROW, [0, 0], [0, 0]), {"repetition": 2.0}, [1.5, 2.0, -1.0, 0.5])


@check("04.2")
def presence_is_subtracted_once(learner: Learner) -> None:
    """Presence is subtracted once from each token of the output, and ignores the prompt."""
    expect_logits(learner, (ROW, [3], [0, 0, 1]), {"presence": 0.5}, [2.5, 1.5, -1.0, 0.5])


@check("04.2")
def frequency_counts_occurrences(learner: Learner) -> None:
    """Frequency is subtracted as often as the token occurs in the output, and ignores the prompt."""
    expect_logits(learner, (ROW, [3, 0], [0, 0, 2]), {"frequency": 0.5}, [2.0, 2.0, -1.5, 0.5])


@check("04.2")
def repetition_comes_first(learner: Learner) -> None:
    """Repetition looks at the sign of the model's logit, before presence and frequency. 50 random rows, exact."""
    rng = Random(403)

    def run(size: int) -> None:
        row = [rng.randrange(-16, 17) / 4 for _ in range(size)]
        prompt, output = ([rng.randrange(size) for _ in range(rng.randrange(size))] for _ in range(2))
        penalties = {"repetition": 2.0, "presence": 0.5, "frequency": 0.25}
        wanted = []
        for token, logit in enumerate(row):
            value = Fraction(logit)
            if token in prompt or token in output:
                value = value * 2 if value < 0 else value / 2
            value -= Fraction(1, 4) * output.count(token) + (Fraction(1, 2) if token in output else 0)
            wanted.append(float(value))
        expect_logits(learner, (row, prompt, output), penalties, wanted)

    smallest([1 + index // 6 for index in range(50)], run)


def drawn(learner: Learner, probs: list[float], uniform: float) -> int:
    found = learner.call("sample", probs, uniform)
    if type(found) is not int or not 0 <= found < len(probs):
        raise Failed(f"the result is {found!r}, not a token id", example=f"sample({probs}, {uniform})")
    return found


def expect_token(learner: Learner, probs: list[float], uniform: float, wanted: int) -> None:
    if (found := drawn(learner, probs, uniform)) != wanted:
        raise Failed(f"token {found} is drawn; expected {wanted}", example=f"sample({probs}, {uniform})")


@check("04.3")
def shares_lie_in_order_of_ids(learner: Learner) -> None:
    """Each token owns an interval as long as its probability, in order of ids."""
    probs = [0.25, 0.5, 0.125, 0.125]
    for uniform, wanted in ((0.1, 0), (0.3, 1), (0.7, 1), (0.8, 2), (0.9, 3)):
        expect_token(learner, probs, uniform, wanted)


@check("04.3")
def left_ends_belong_to_the_token(learner: Learner) -> None:
    """The left end of an interval belongs to its token: uniform = 0.25 is the first point of the second quarter."""
    for uniform, wanted in ((0.0, 0), (0.25, 1), (0.5, 2), (0.75, 3)):
        expect_token(learner, [0.25] * 4, uniform, wanted)


@check("04.3")
def impossible_tokens_are_never_drawn(learner: Learner) -> None:
    """A token of probability 0 is never drawn, not even at 0.0 or at the end of the line."""
    for uniform, wanted in ((0.0, 1), (0.5, 3), (0.999999, 3)):
        expect_token(learner, [0.0, 0.5, 0.0, 0.5, 0.0], uniform, wanted)


@check("04.3")
def rounding_leaves_no_gap(learner: Learner) -> None:
    """Ten times 0.1 adds up to less than 1 in floating point; a uniform beyond the sum gets the last possible token."""
    expect_token(learner, [*[0.1] * 10, 0.0], math.nextafter(1.0, 0.0), 9)


@check("04.3")
def frequencies_follow_the_probabilities(learner: Learner) -> None:
    """Over 3,000 uniforms from seed 404 the counts pass a chi-square test against the probabilities (alpha 1e-4)."""
    probs = [0.4, 0.05, 0.0, 0.25, 0.2, 0.1]
    draws = 3_000
    rng = Random(404)
    counts = Counter(drawn(learner, probs, rng.random()) for _ in range(draws))
    statistic = sum(
        (counts[token] - draws * prob) ** 2 / (draws * prob) for token, prob in enumerate(probs) if prob
    )
    limit = 23.51  # 1 - 1e-4 quantile of chi-square with 4 degrees of freedom
    if statistic > limit:
        raise Failed(
            f"chi-square is {statistic:.1f}; {limit} is exceeded once in 10,000 by a correct sampler",
            example=f"probs {probs}, counts {[counts[token] for token in range(len(probs))]}",
        )
