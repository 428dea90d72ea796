"""Quality gates: compare a changed model with its reference, and decide whether it may replace it.

A quantised model, a smaller KV cache or a new checkpoint answers the same unseen questions as its reference. Each group
of answers gets a verdict from the confidence interval of the difference, not from the difference:

    limit -2 points        -3    -2    -1     0    +1
                            |     :     |     |     |
    pass                          :  [--x----]          even the low end is above the limit
    fail                   [--x-] :                     even the high end is below it
    inconclusive             [----:--x--]               ask more questions (-n)

The answers are pairs, one question answered twice, so only the questions on which the two differ count: with few
of those the interval is narrow, whatever the share of right answers. A group must still be large enough that two equal
models pass: `draw_gate_cases` adds questions to the rare groups.

Sources: Wilson 1927 (interval of a share), Agresti & Min 2005 (interval of a paired difference), Efron & Tibshirani
1993 (bootstrap, for perplexity).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from random import Random
from statistics import NormalDist
from typing import Literal

from .corpus import ROWS, Case, draw_cases, draw_conversation, to_cases
from .dialogue import KIND_TO_TYPE

Verdict = Literal["pass", "fail", "inconclusive"]
Z95 = NormalDist().inv_cdf(0.975)

EXACT_MATCH_LIMIT = -0.02  # allowed change of exact match over all questions; a group may lose twice as much
JSON_LIMIT = -0.05
TOOL_CALLS = "tool calls that parse"
PERPLEXITY_LIMIT = 1.03
BOOTSTRAPS = 1000


@dataclass(frozen=True, slots=True)
class Answers:
    """One model's answers to the cases, and its log-probabilities of the right answers."""

    texts: list[str]
    logprobs: list[float]  # summed log-probability of the right answer's tokens, for the first cases
    num_tokens: list[int]  # tokens of each of those right answers


@dataclass(frozen=True, slots=True)
class Gate:
    """One verdict. `low` and `high` are the 95 % interval of `difference` (for perplexity: of the ratio)."""

    name: str
    num_cases: int
    reference: float
    candidate: float
    difference: float
    low: float
    high: float
    limit: float
    verdict: Verdict


def wilson(right: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share; (0, 1) without observations."""
    if total == 0:
        return 0.0, 1.0
    share, spread = right / total, Z95**2 / total
    centre = (share + spread / 2) / (1 + spread)
    half = Z95 / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return max(0.0, centre - half), min(1.0, centre + half)


def paired_difference(won: int, lost: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of candidate minus reference: only the candidate was right on `won`, not on `lost`."""
    won_, lost_, total_ = won + 0.5, lost + 0.5, total + 2
    difference = (won_ - lost_) / total_
    half = Z95 * math.sqrt(max(0.0, won_ + lost_ - (won_ - lost_) ** 2 / total_)) / total_
    return max(-1.0, difference - half), min(1.0, difference + half)


def least_answers(limit: float) -> int:
    """Return the smallest group that passes a gate at `limit` although one answer was won and one was lost."""
    return next(total for total in range(2, 10_000) if paired_difference(1, 1, total)[0] >= limit)


def draw_gate_cases(n: int, seed: int, split: str) -> list[Case]:
    """Draw at least `n` cases in whole conversations, then more cases of each group that is still too small."""
    cases = draw_cases(n, seed, split)
    counts = Counter(group for case in cases for group in _groups(case))
    limits = dict.fromkeys(counts, 2 * EXACT_MATCH_LIMIT) | {TOOL_CALLS: JSON_LIMIT}
    wanted = {group: least_answers(limits[group]) for group in counts}
    indices = count()
    while any(counts[group] < number for group, number in wanted.items()):
        for case in to_cases(draw_conversation(split, seed + 1, next(indices), ROWS)):
            if any(counts[group] < wanted.get(group, 0) for group in _groups(case)):
                cases.append(case)
                counts.update(_groups(case))
    return cases


def _groups(case: Case) -> list[str]:
    """Return the names of the gates that a case counts for, besides the gate over all cases."""
    groups = [f"exact match, {KIND_TO_TYPE[case.kind]}", f"exact match, {case.language}"]
    return [*groups, TOOL_CALLS] if _is_json(case.answer) else groups


def judge(
    cases: Sequence[Case], reference: Answers, candidate: Answers, num_drawn: int | None = None
) -> list[Gate]:
    """Return all gates over the same cases for both models. The gate over everything reads the first `num_drawn`."""
    before, after = (
        [text == case.answer for case, text in zip(cases, answers.texts, strict=True)]
        for answers in (reference, candidate)
    )
    groups: dict[str, list[int]] = {}
    for index, case in enumerate(cases):
        for group in _groups(case):
            groups.setdefault(group, []).append(index)
    calls = groups.pop(TOOL_CALLS, [])
    gates = [_share_gate("exact match", range(num_drawn or len(cases)), before, after, EXACT_MATCH_LIMIT)]
    for name in sorted(groups):
        gates.append(_share_gate(name, groups[name], before, after, 2 * EXACT_MATCH_LIMIT))
    if calls:
        before, after = (list(map(_is_json, answers.texts)) for answers in (reference, candidate))
        gates.append(_share_gate(TOOL_CALLS, calls, before, after, JSON_LIMIT))
    if reference.logprobs:
        gates.append(_perplexity_gate(reference, candidate))
    return gates


def overall(gates: Sequence[Gate]) -> Verdict:
    """Return fail if any gate fails, pass if all pass, else inconclusive."""
    verdicts = {gate.verdict for gate in gates}
    return "fail" if "fail" in verdicts else "inconclusive" if "inconclusive" in verdicts else "pass"


def as_dict(gates: Sequence[Gate]) -> dict[str, object]:
    return {"verdict": overall(gates), "gates": [asdict(gate) for gate in gates]}


def _share_gate(
    name: str, chosen: Sequence[int], reference: Sequence[bool], candidate: Sequence[bool], limit: float
) -> Gate:
    total = len(chosen)
    before, after = sum(reference[i] for i in chosen), sum(candidate[i] for i in chosen)
    won = sum(candidate[i] and not reference[i] for i in chosen)
    lost = sum(reference[i] and not candidate[i] for i in chosen)
    low, high = paired_difference(won, lost, total)
    verdict: Verdict = "pass" if low >= limit else "fail" if high < limit else "inconclusive"
    shares = (before / total, after / total, (after - before) / total)
    return Gate(name, total, *shares, low, high, limit, verdict)


def _perplexity_gate(reference: Answers, candidate: Answers) -> Gate:
    """Compare the perplexities of the right answers by their ratio, resampled by answer."""
    count = len(reference.logprobs)

    def perplexities(chosen: Sequence[int]) -> tuple[float, float]:
        tokens = sum(reference.num_tokens[i] for i in chosen)
        losses = (-sum(answers.logprobs[i] for i in chosen) / tokens for answers in (reference, candidate))
        before, after = map(math.exp, losses)
        return before, after

    before, after = perplexities(range(count))
    rng = Random(0)
    samples = (perplexities(rng.choices(range(count), k=count)) for _ in range(BOOTSTRAPS))
    ratios = sorted(resampled / base for base, resampled in samples)
    low, high = ratios[round(0.025 * BOOTSTRAPS)], ratios[round(0.975 * BOOTSTRAPS) - 1]
    limit = PERPLEXITY_LIMIT
    verdict: Verdict = "pass" if high <= limit else "fail" if low > limit else "inconclusive"
    return Gate("perplexity (ratio)", count, before, after, after / before, low, high, limit, verdict)


def _is_json(text: str) -> bool:
    """Whether a tool call parses: one JSON object, in its tags or bare."""
    body = text.strip().removeprefix("<tool_call>").removesuffix("</tool_call>").strip()
    if not body.startswith("{"):
        return False
    try:
        return isinstance(json.loads(body), dict)
    except json.JSONDecodeError:
        return False
