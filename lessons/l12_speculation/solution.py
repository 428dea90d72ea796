"""Reference solutions of lesson 12."""

# ruff: noqa: E402


# exercise 12.1
def propose(token_ids: list[int], num_drafts: int, max_ngram: int) -> list[int]:
    """Return up to `num_drafts` drafts: what followed the ending of `token_ids` when it last occurred before.

    The longest ending counts first, from max_ngram tokens down to one; of its earlier occurrences the most recent.
    An earlier occurrence may overlap the ending. Returns [] if no ending occurred before.
    """
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
    """Return the tokens of one verified step: the accepted drafts and one token more, distributed as the target.

    target_probs: k + 1 rows of the target's probabilities, after 0, 1, ... k drafts. draft_probs: the k rows that the
    drafts were drawn from. uniforms: k + 1 numbers in [0, 1); number i decides on draft i: accepted with probability
    min(1, p / q). The first rejection ends the step with a draw from max(0, p - q), normalised. Without a rejection
    the last row of target_probs gives the extra token. That one draw uses uniforms[k], by inverse CDF.
    """
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
    """Return the mean number of tokens per verified step of k drafts, each right with probability alpha.

    A draft counts only if all before it were right; the target always adds one token.
    """
    return sum(alpha**position for position in range(k + 1))


def speedup(alpha: float, k: int, cost: float, verify: float = 1.0) -> float:
    """Return the tokens per second with k drafts over those without.

    cost: time of one draft over that of a plain decode step. verify: time of the target's pass over k + 1 tokens per
    request, over that of a plain decode step; it matters for k > 0 only.
    """
    return expected_tokens(alpha, k) / (k * cost + verify) if k else 1.0


def best_k(alpha: float, cost: float, verify_of: list[float]) -> int:
    """Return the k with the largest speed-up, 0 if drafts never pay; of equal ones the smallest.

    verify_of[k]: `verify` for k drafts; its length limits k, and verify_of[0] is 1.
    """
    return max(range(len(verify_of)), key=lambda k: (speedup(alpha, k, cost, verify_of[k]), -k))
