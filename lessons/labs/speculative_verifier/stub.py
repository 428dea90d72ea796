"""Lab speculative-verifier: keep the drafts that the target model would have sampled, and lose nothing.

The seam is `RejectionVerifier` of engine/sample/draft_acceptance.py; vLLM: v1/sample/rejection_sampler.py. Source:
Leviathan et al. 2023 (2211.17192), algorithm 1, and Chen et al. 2023 (2302.01318).

    drafts            x0          x1          x2             k = 3 tokens, each drawn from its q
    draft_probs       q0          q1          q2
    target_probs      p0          p1          p2      p3     one more: the target has seen all drafts
    keep x_i if       u_i < p_i(x_i) / q_i(x_i)
    result            x0          recovered                  x1 was refused: a token of max(p1 - q1, 0), and the end

Whatever q is, the tokens that come out have the target's distribution. Probabilities are plain lists that sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence


def draw(weights: Sequence[float], u: float) -> int:
    """Return the token at u of a distribution: the first token whose running sum exceeds u times the total.

    weights: at least 0, not necessarily with sum 1, not all 0. u: 0 <= u < 1. A token of weight 0 never comes out, also
    if the running sum stays below u times the total because of rounding: then the last token with a weight does.
    """
    raise NotImplementedError("write draw")


def residual(p: Sequence[float], q: Sequence[float] | None, token: int) -> list[float]:
    """Return the weights of the token that replaces a refused draft: max(p - q, 0), not normalised.

    q: None stands for a drafter without probabilities, such as prompt lookup, which proposes `token` for certain.
    If rounding leaves no weight at all, return p.
    """
    raise NotImplementedError("write residual")


def verify(
    drafts: Sequence[int],
    draft_probs: Sequence[Sequence[float] | None],
    target_probs: Sequence[Sequence[float]],
    uniforms: Sequence[float],
) -> list[int]:
    """Return the tokens of this step: the kept drafts, then one more. At least 1, at most k + 1 tokens.

    drafts: k token ids, k >= 0. draft_probs: k distributions, or None as in `residual`, where q is 1 for the draft.
    target_probs: k + 1 distributions. uniforms: k + 1 numbers in [0, 1); number i decides about draft i, and the
    last of them draws the one more token: from the residual after a refusal, from target_probs[k] after none.

    A draft with p = 0 is refused, whatever u is. Compare by multiplying, so that q = 0 is no division by zero; a draft
    with q = 0 and p > 0 cannot have been drawn from q, and is kept.
    """
    raise NotImplementedError("write verify")
