"""Reference solutions of lesson 12."""

# ruff: noqa: E402


# exercise 12.1
def propose(token_ids: list[int], num_drafts: int, max_ngram: int) -> list[int]:
    for size in range(min(max_ngram, len(token_ids) - 1), 0, -1):
        ending = token_ids[-size:]
        for start in range(len(token_ids) - size - 1, -1, -1):
            if token_ids[start : start + size] == ending:
                return token_ids[start + size : start + size + num_drafts]
    return []


# exercise 12.2
from itertools import accumulate


def accept(
    drafts: list[int], target_probs: list[list[float]], draft_probs: list[list[float]], uniforms: list[float]
) -> list[int]:
    for index, draft in enumerate(drafts):
        p, q = target_probs[index], draft_probs[index]
        if uniforms[index] * q[draft] >= p[draft]:
            residual = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
            return [*drafts[:index], _draw(residual, uniforms[-1])]
    return [*drafts, _draw(target_probs[-1], uniforms[-1])]


def _draw(weights: list[float], uniform: float) -> int:
    """Return the first token at which the running sum of the weights exceeds that share of their total."""
    sums = list(accumulate(weights))
    possible = (token for token, total in enumerate(sums) if total > uniform * sums[-1])
    return next(possible, max(range(len(weights)), key=weights.__getitem__))


# exercise 12.3
def expected_tokens(alpha: float, k: int) -> float:
    return sum(alpha**position for position in range(k + 1))


def speedup(alpha: float, k: int, cost: float, verify: float = 1.0) -> float:
    return expected_tokens(alpha, k) / (k * cost + verify) if k else 1.0


def best_k(alpha: float, cost: float, verify_of: list[float]) -> int:
    return max(range(len(verify_of)), key=lambda k: (speedup(alpha, k, cost, verify_of[k]), -k))
