"""Lab speculative-verifier: which drafts to keep, and which token follows them.

The seam is the verifier of engine/sample/draft_acceptance.py. A drafter has proposed k tokens; one forward pass of the
target gave its distributions at all k + 1 positions. Keep drafts such that the output is distributed as if the target
had sampled each token itself: Leviathan et al. 2023 (2211.17192), algorithm 1; vLLM v1/sample/rejection_sampler.py.

    drafts          b        c        d
    draft_probs     q0       q1       q2                 the distribution that each draft was drawn from
    target_probs    p0       p1       p2       p3        after the context, after b, after b c, after b c d
    uniforms        u0       u1       u2       u3
    c is rejected   b        x                           x is drawn from max(0, p1 - q1), scaled to sum 1, by u3
    none is         b        c        d        y         y, the bonus token, is drawn from p3, by u3

Token ids are indices into the distributions, which are lists of V numbers >= 0 with sum 1, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence


def verify(
    drafts: Sequence[int],
    draft_probs: Sequence[Sequence[float]] | None,
    target_probs: Sequence[Sequence[float]],
    uniforms: Sequence[float],
) -> list[int]:
    """Return the accepted drafts and one token more: 1 to k + 1 token ids.

    drafts: k >= 0 ids. draft_probs: k distributions q, or None for drafts that are no samples, such as those of an
    n-gram lookup: then each was proposed with certainty, q is 1 at the draft and 0 elsewhere. target_probs: k + 1
    distributions p. uniforms: k + 1 independent numbers in [0, 1). Raises ValueError if these lengths do not fit k.

    1. From the left, draft d at position i is accepted if uniforms[i] * q[d] < p[d]; so never if p[d] is 0.
    2. The first draft that is not accepted ends the output. Instead of it, one token is drawn from the residual, the
       weights max(0, p - q) of its position.
    3. If all drafts are accepted, one token is drawn from target_probs[k].
    4. Draw from weights w with u = uniforms[k]: the lowest id t at which w[0] + ... + w[t] exceeds u * sum(w). If
       rounding leaves none, the last id with a weight above 0. A token of weight 0 is never drawn.
    5. If rounding leaves no weight above 0 in the residual, draw from p of that position instead.
    """
    k = len(drafts)
    given = k if draft_probs is None else len(draft_probs)
    if (given, len(target_probs), len(uniforms)) != (k, k + 1, k + 1):
        raise ValueError(
            f"{k} drafts need {k} draft distributions and {k + 1} target distributions and uniforms, "
            f"got {given}, {len(target_probs)} and {len(uniforms)}"
        )
    accepted: list[int] = []
    for place, draft in enumerate(drafts):
        p = target_probs[place]
        q = certain(draft, len(p)) if draft_probs is None else draft_probs[place]
        if not uniforms[place] * q[draft] < p[draft]:
            residual = [max(0.0, target - drafted) for target, drafted in zip(p, q, strict=True)]
            return [*accepted, draw(residual if any(residual) else p, uniforms[k])]
        accepted.append(draft)
    return [*accepted, draw(target_probs[k], uniforms[k])]


def certain(token: int, size: int) -> list[float]:
    """Return the distribution of a draft that is no sample."""
    return [1.0 if other == token else 0.0 for other in range(size)]


def draw(weights: Sequence[float], u: float) -> int:
    """Return the first token whose cumulative weight exceeds u times the total."""
    bound, total, last = u * sum(weights), 0.0, 0
    for token, weight in enumerate(weights):
        total += weight
        if total > bound:
            return token
        if weight > 0:
            last = token
    return last
