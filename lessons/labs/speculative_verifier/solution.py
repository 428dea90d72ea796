"""Solution of lab speculative-verifier. The docstrings of the stub state the contract."""

from __future__ import annotations

from collections.abc import Sequence


def verify(
    drafts: Sequence[int],
    draft_probs: Sequence[Sequence[float]] | None,
    target_probs: Sequence[Sequence[float]],
    uniforms: Sequence[float],
) -> list[int]:
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
