"""Two descriptions of the same job (`drive.py`): what is equal, where outputs part, and how close the choice was."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

BAR = 0.99
"""Share of outputs that must be equal; the others must part where both engines see a near-tie."""
BEAM_TOLERANCE = 1e-3
"""Nats between the cumulative log-probabilities of a beam."""


@dataclass
class Difference:
    """The first position where two outputs part, and how close the choice was on each side."""

    prompt: int
    position: int
    ours: int
    theirs: int
    our_gap: float | None
    """Our logprob of our token minus that of theirs; near 0 means a near-tie."""
    their_gap: float | None

    def is_near_tie(self, nats: float) -> bool:
        """Whether both engines saw less than this between the two tokens."""
        return all(gap is not None and abs(gap) < nats for gap in (self.our_gap, self.their_gap))


@dataclass
class Comparison:
    """Result of one workload. Counters are pairs: ours, vLLM's."""

    workload: str
    outputs: int = 0
    """Completions, or beams."""
    equal: int = 0
    differences: list[Difference] = field(default_factory=list)
    logprob_gap: float = 0.0
    """Largest difference of a token's logprob (of a beam's cumulative one) while the outputs are equal."""
    prompt_logprob_gap: float = 0.0
    counters: dict[str, tuple[int, int]] = field(default_factory=dict)
    near_tie: float = 0.02
    """Nats between two tokens that rounding may exchange."""
    note: str = ""
    """Differences between the engines by design."""
    error: str = ""
    """vLLM could not run this."""

    @property
    def agrees(self) -> bool:
        """Whether no observation contradicts equal results."""
        near_ties = sum(difference.is_near_tie(self.near_tie) for difference in self.differences)
        return not self.error and (self.equal >= BAR * self.outputs or self.equal + near_ties == self.outputs)


def compare(
    name: str, ours: dict[str, Any], theirs: dict[str, Any], *, note: str = "", near_tie: float = 0.02
) -> Comparison:
    """Completions token by token up to the first difference, searches beam by beam, counters side by side."""
    result = Comparison(name, near_tie=near_tie, note=note, error=theirs.get("error", ""))
    if result.error:
        return result
    result.counters = {key: (ours["counters"][key], theirs["counters"][key]) for key in ours["counters"]}
    for prompt, (a, b) in enumerate(zip(ours["requests"], theirs["requests"], strict=True)):
        result.prompt_logprob_gap = max(
            result.prompt_logprob_gap,
            *map(largest_gap, a["prompt_logprobs"], b["prompt_logprobs"]),
            0.0,
        )
        for x, y in zip(a["completions"], b["completions"], strict=True):
            _compare_completions(result, prompt, x, y)
    for a, b in zip(ours["searches"], theirs["searches"], strict=True):
        _compare_searches(result, a, b)
    return result


def _compare_completions(
    result: Comparison, prompt: int, ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    difference = first_difference(prompt, ours, theirs)
    result.outputs += 1
    result.equal += difference is None
    if difference is not None:
        result.differences.append(difference)
    same = len(ours["token_ids"]) if difference is None else difference.position
    pairs = zip(ours["logprobs"][:same], theirs["logprobs"][:same], strict=True)
    result.logprob_gap = max(result.logprob_gap, *(largest_gap(a, b) for a, b in pairs), 0.0)


def _compare_searches(result: Comparison, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    """Rank by rank; two beams that are as likely may change places."""
    result.outputs += max(len(ours), len(theirs))
    for a, b in zip_longest(ours, theirs):
        if a is None or b is None:
            continue
        gap = abs(a["cum_logprob"] - b["cum_logprob"])
        if a["tokens"] == b["tokens"]:
            result.logprob_gap = max(result.logprob_gap, gap)
        result.equal += a["tokens"] == b["tokens"] and gap < BEAM_TOLERANCE


def first_difference(prompt: int, ours: dict[str, Any], theirs: dict[str, Any]) -> Difference | None:
    """None if the token ids are equal; -1 stands for an end."""
    a, b = ours["token_ids"], theirs["token_ids"]
    if a == b:
        return None
    position = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    x = a[position] if position < len(a) else -1
    y = b[position] if position < len(b) else -1
    return Difference(
        prompt,
        position,
        x,
        y,
        _gap(ours["logprobs"], position, x, y),
        _gap(theirs["logprobs"], position, y, x),
    )


def _gap(logprobs: list[dict[str, float]], position: int, chosen: int, other: int) -> float | None:
    if position >= len(logprobs) or str(other) not in logprobs[position]:
        return None
    return logprobs[position][str(chosen)] - logprobs[position][str(other)]


def largest_gap(ours: dict[str, float], theirs: dict[str, float]) -> float:
    """Largest difference among the tokens that both list; infinite if they list none in common but should."""
    common = ours.keys() & theirs.keys()
    if not common:
        return float("inf") if ours or theirs else 0.0
    return max(abs(ours[token] - theirs[token]) for token in common)
