"""Tokens from drafts and their cost, on paper."""

from math import ceil


def tokens_per_step(acceptance: float, k: int) -> float:
    """Expected tokens of a verified step: draft i counts if the i before it and it are right."""
    return sum(acceptance**drafts for drafts in range(k + 1))


def logged_acceptance(acceptance: float, k: int) -> float:
    """Accepted over proposed drafts, as a server's metric has it."""
    return (tokens_per_step(acceptance, k) - 1) / k


def speedup(acceptance: float, k: int, cost: float) -> float:
    """Tokens per step over its length: k drafts of `cost` target steps each, and one target step."""
    return tokens_per_step(acceptance, k) / (k * cost + 1)


def best_k(acceptance: float, cost: float, most: int = 16) -> int:
    """The number of drafts with the highest speed-up; the smallest of equals."""
    return max(range(most + 1), key=lambda k: (round(speedup(acceptance, k, cost), 12), -k))


def overlap(target: list[float], draft: list[float]) -> float:
    """Chance that a draft from q is accepted for p: 1 minus their total variation distance."""
    p_sum, q_sum = sum(target), sum(draft)
    return 1 - sum(abs(p / p_sum - q / q_sum) for p, q in zip(target, draft, strict=True)) / 2


def residual(target: list[float], draft: list[float]) -> list[float]:
    """Distribution after a rejected draft: the part of p above q, scaled to 1."""
    p_sum, q_sum = sum(target), sum(draft)
    above = [max(0.0, p / p_sum - q / q_sum) for p, q in zip(target, draft, strict=True)]
    return [value / sum(above) for value in above]


def looked_up(tokens: list[int], shortest: int, longest: int, k: int) -> list[int]:
    """Prompt lookup with lists: compare the ending at every earlier place, from the right, longest ending first."""
    for size in range(longest, shortest - 1, -1):
        ending = tokens[len(tokens) - size :]
        for start in range(len(tokens) - size - 1, -1, -1):
            if start >= 0 and tokens[start : start + size] == ending and size < len(tokens):
                return tokens[start + size : start + size + k]
    return []


def tree_tokens(acceptance: float, branches: int, depth: int) -> float:
    """Expected tokens of a step with `branches` candidates at each level; one of them is right with probability
    1 - (1 - a)^branches."""
    accepted = 1 - (1 - acceptance) ** branches
    return sum(accepted**level for level in range(depth + 1))


def tree_nodes(branches: int, depth: int) -> int:
    """Positions that a full tree puts through the target, the newest token included."""
    return sum(branches**level for level in range(depth + 1))


def ridge_batch(tflops: float, gb_per_s: float, k: int, value_bytes: int = 2) -> int:
    """Requests from which the verified step's GEMMs are compute-bound: batch x (k + 1) tokens meet the ridge.

    A weight of value_bytes bytes is read once per step and used in 2 FLOP per token.
    """
    ridge_tokens = tflops * 1e12 / (gb_per_s * 1e9) * value_bytes / 2
    return max(1, ceil(ridge_tokens / (k + 1)))
