"""Log-probabilities of chosen tokens and of their most likely alternatives.

Source: vLLM v1/sample/sampler.py, gather_logprobs.
"""

from __future__ import annotations

from torch import Tensor

from engine.core.sched_output import TokenLogprobs


def token_logprobs(logprobs: Tensor, token_ids: Tensor, counts: list[int]) -> list[TokenLogprobs]:
    """Return an entry per row: the row's token with its rank, then its `counts[row]` most likely tokens.

    logprobs: float32 [N, V], normalised; token_ids: int64 [N]. Rank 1 is the most likely token;
    ties with the chosen token do not lower its rank.
    """
    token_ids = token_ids.to(logprobs.device)
    chosen = logprobs.gather(-1, token_ids.unsqueeze(-1))
    ranks = ((logprobs > chosen).sum(-1) + 1).tolist()
    best = logprobs.topk(max(counts), dim=-1)
    rows = zip(
        token_ids.tolist(),
        chosen.squeeze(-1).tolist(),
        ranks,
        best.indices.tolist(),
        best.values.tolist(),
        counts,
        strict=True,
    )
    return [
        TokenLogprobs([token, *ids[:count]], [value, *values[:count]], rank)
        for token, value, rank, ids, values, count in rows
    ]
