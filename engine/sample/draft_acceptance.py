"""Draft acceptance: the target chooses a token at every position, and accepts a draft that equals it.

    position        7          8          9          10                drafts for 8, 9, 10: b c d
    tokens      [ newest   |   b      |   c      |   d   ]             one forward pass
    chosen          b          c          x          -                 8 and 9 are right, 10 is ignored
    kept            b          c          x                            2 accepted drafts and one token more

Two ways to choose are shipped, `speculative_config={"verifier": ...}`:

**coupling**  The ordinary sampler, with the noise of each position (`rng.py`). Its choice does not depend on the
drafts, so the output equals that of a run without drafts, token for token, at any temperature. It needs no class. The
idea is the shared-Gumbel coupling of Daliri et al. 2025.

**rejection**  The textbook method. A draft d drawn from q is accepted with probability min(1, p(d) / q(d)), else the
token is drawn from max(0, p - q), which makes it a sample of p for any q. No scheme accepts more, but tokens differ
from those without drafts. Leviathan et al. 2023 and Chen et al. 2023; vLLM v1/sample/rejection_sampler.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from engine.sample.processors import SampleBatch
from engine.sample.rng import row_keys
from engine.sample.sampler import RowPlan
from kernels import ops

DRAFT_NOISE = 0x5DEECE66D
"""Noise tag for drawing drafts with rejection; independent of the noise that accepts them."""
ACCEPT_NOISE = 0x2545F4914F6CDD1D  # Noise tag for accepting drafts

DraftProbabilities = Callable[[int], Tensor | None]
"""State slot -> fp32 [k, V], distributions of its drafts; None: drafts are not samples."""


def num_agreeing(chosen: list[int], drafts: list[int]) -> int:
    """Return how many drafts are accepted, from the left; `chosen` has one token more than `drafts`."""
    pairs = enumerate(zip(chosen, drafts, strict=False))
    return next((index for index, (token, draft) in pairs if token != draft), len(drafts))


class RejectionVerifier:
    """Rejection sampling of the rows of a batch."""

    def __init__(self, draft_probabilities: DraftProbabilities = lambda slot: None) -> None:
        """draft_probabilities: those of the drafter; without them a draft has probability 1."""
        self._draft_probabilities = draft_probabilities

    def choose(self, logits: Tensor, plan: RowPlan, batch: SampleBatch, token_ids: Tensor) -> Tensor:
        if batch.num_drafts is None:
            return token_ids
        rows = np.flatnonzero(batch.num_drafts[1:] > 0)  # rows with a draft: the next row begins with it
        drafts = batch.token_ids[batch.slots[rows], batch.lengths[rows]].astype(np.int64)
        index, draft = torch.from_numpy(rows).to(logits.device), torch.from_numpy(drafts).to(logits.device)
        target = target_probabilities(logits, plan)[index]
        # [N, V]: drafts' distributions
        drawn_from = torch.zeros_like(target).scatter_(-1, draft[:, None], 1.0)
        for line, row in enumerate(rows.tolist()):
            known = self._draft_probabilities(int(batch.slots[row]))
            if known is not None:
                drawn_from[line] = known[batch.num_drafts[row]]
        p, q = (table.gather(-1, draft[:, None]).squeeze(-1) for table in (target, drawn_from))
        accepted = _uniform(plan, batch, rows).to(logits.device) * q < p
        recovered = _draw((target - drawn_from).clamp_(min=0), plan, batch, rows)
        chosen = token_ids.clone()
        chosen[index] = torch.where(accepted, draft, recovered)
        return chosen


def target_probabilities(logits: Tensor, plan: RowPlan) -> Tensor:
    """Return fp32 [S, V]: each row's distribution after all filters; one-hot for greedy rows."""
    greedy = logits.argmax(-1, keepdim=True)
    random = (plan.temperature > 0)[:, None]
    x = (logits - logits.gather(-1, greedy)) / torch.where(random, plan.temperature[:, None], 1.0)
    x = x.masked_fill(x < ops.floor_of(x, plan.top_k, plan.top_p, plan.min_p), -torch.inf)
    certain = torch.zeros_like(x).scatter_(-1, greedy, 1.0)
    return torch.where(random, x.softmax(-1), certain)


def _uniform(plan: RowPlan, batch: SampleBatch, rows: np.ndarray) -> Tensor:
    """Return fp32 [N] in (0, 1), noise that depends only on the request's seed and the position."""
    if plan.seeds is None:
        return torch.full((len(rows),), 0.5)  # all rows are greedy: p is 0 or 1
    bits = row_keys(plan.seeds[rows] ^ ACCEPT_NOISE, batch.lengths[rows])[:, 0].view(np.uint32)
    return torch.from_numpy(((bits + 0.5) * 2.0**-32).astype(np.float32))


def _draw(weights: Tensor, plan: RowPlan, batch: SampleBatch, rows: np.ndarray) -> Tensor:
    """Draw one token per row of unnormalised weights [N, V], with the noise of its position."""
    count, vocab_size = weights.shape
    ones, device = torch.ones(count, device=weights.device), weights.device
    seeds = np.zeros(count, np.int64) if plan.seeds is None else plan.seeds[rows]
    keys = torch.from_numpy(row_keys(seeds, batch.lengths[rows])).to(device)
    everything = torch.full((count,), vocab_size, dtype=torch.int32, device=device)
    return ops.sample(weights.log(), ones, everything, ones, torch.zeros_like(ones), keys)[0]
