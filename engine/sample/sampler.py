"""The sampler: temperature, top-p, top-k, min-p and seeded noise, for all rows of a step at once.

    logits --[ bias, penalties, allowed ids, bad words, min tokens, user's own ]-->  edits, -inf = banned
           --[ bitmask ]-->  only tokens that the row's grammar allows
           --[ temperature, min_p, top_k, top_p, noise: ops.sample ]-->  one token per row

The first two lines run only for rows that use them, the third in one call for all rows; a greedy row costs one pass
over its logits. The rows' parameters are gathered when the batch changes.

Source: vLLM v1/sample/sampler.py for the order; the floor and the noise of the third line are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from engine.core.sched_output import RequestInit, TokenLogprobs
from engine.sample.processors import BUILTIN_PROCESSORS, LogitsProcessor, SampleBatch
from engine.sample.rng import row_keys
from kernels import ops

MAX_PLANS = 64
"""Number of batches whose plans are kept: one without drafts, with drafts one for each number of them."""


@dataclass(slots=True)
class SamplerOutput:
    """Results of the S rows of a batch."""

    token_ids: np.ndarray  # int64 [S]; undefined in the rows of `errors`
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """Log-probabilities of the raw logits by row, for rows that asked for them."""
    errors: dict[int, str] = field(default_factory=dict)  # Reasons why no token could be chosen, by row


@dataclass(slots=True)
class RowPlan:
    """Parameters of the S rows of a batch, valid while its rows stay the same."""

    edits: list[tuple[LogitsProcessor, np.ndarray]]
    temperature: Tensor  # float32 [S], like the following fields; top_k is int32. See ops.sample.
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: np.ndarray | None  # int64 [S]; None if all rows are greedy, which use no noise
    no_keys: Tensor  # int32 [S, 2]: keys of greedy rows
    logprob_rows: Tensor
    logprob_counts: list[int]


class Verifier(Protocol):
    """The seam for verifiers (`draft_acceptance.py`): accept drafts by choosing the token of every position."""

    def choose(self, logits: Tensor, plan: RowPlan, batch: SampleBatch, token_ids: Tensor) -> Tensor:
        """Return int64 [S]: the draft after a row if it is accepted, else another token.

        logits fp32 [S, V] with all edits; `token_ids` [S] is what the ordinary sampler chose.
        """
        ...


class Sampler:
    """Choose the next token of each row.

    A request's parameters live in its state slot from `add_request` to `remove_request`. The choice
    depends on the row's logits, its parameters, its seed and its position, never on other rows.
    """

    def __init__(
        self,
        vocab_size: int,
        num_slots: int,
        device: torch.device | str = "cpu",
        processors: Sequence[type[LogitsProcessor]] = (),
    ) -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        everyone = (*BUILTIN_PROCESSORS, *processors)
        self._processors = [processor(vocab_size, num_slots, self.device) for processor in everyone]
        self._wanted = np.zeros((len(self._processors), num_slots), bool)
        self._temperature = np.zeros(num_slots, np.float32)  # 0: greedy
        self._top_k = np.zeros(num_slots, np.int32)  # vocab_size: off
        self._top_p = np.ones(num_slots, np.float32)  # 1: off
        self._min_p = np.zeros(num_slots, np.float32)  # 0: off
        self._seed = np.zeros(num_slots, np.int64)
        self._num_logprobs = np.full(num_slots, -1)  # -1: none asked
        self._plans: dict[bytes, RowPlan] = {}

    def add_request(self, slot: int, init: RequestInit) -> None:
        """A request starts or resumes in `slot`."""
        params = init.sampling_params
        self._temperature[slot] = 0.0 if params.is_greedy else params.temperature
        self._top_k[slot] = min(params.top_k, self.vocab_size) if params.top_k > 0 else self.vocab_size
        self._top_p[slot] = params.top_p
        self._min_p[slot] = params.min_p
        self._seed[slot] = init.seed
        self._num_logprobs[slot] = resolve_num_logprobs(params.logprobs, self.vocab_size)
        for index, processor in enumerate(self._processors):
            self._wanted[index, slot] = wanted = processor.add_request(slot, init)
            if wanted and getattr(processor, "filters", False):
                self._top_k[slot], self._top_p[slot] = self.vocab_size, 1.0
        self._plans.clear()

    def remove_request(self, slot: int) -> None:
        """The request of `slot` finished or was preempted."""
        for index, processor in enumerate(self._processors):
            if self._wanted[index, slot]:
                processor.remove_request(slot)
                self._wanted[index, slot] = False
        self._plans.clear()

    def __call__(
        self,
        logits: Tensor,
        batch: SampleBatch,
        bitmask: Tensor | None = None,
        verifier: Verifier | None = None,
    ) -> SamplerOutput:
        """Choose a token per row of float32 logits [S, V], which are overwritten.

        bitmask: int32 [S, ceil(V / 32)], see ops.apply_token_bitmask; the last edit, so that none can lift it.
        verifier: decides the tokens of rows before a draft.
        """
        plan = self.plan(batch.slots)
        raw = logits[plan.logprob_rows].log_softmax(-1) if plan.logprob_counts else None
        for processor, rows in plan.edits:
            processor.apply(logits, rows, batch)
        if bitmask is not None:
            ops.apply_token_bitmask(logits, bitmask)
        token_ids, peaks = self._choose(logits, plan, batch.lengths)
        if verifier is not None:
            token_ids = verifier.choose(logits, plan, batch, token_ids)
        output = SamplerOutput(token_ids.cpu().numpy())
        healthy = np.isfinite(peaks.cpu().numpy())
        if not healthy.all():
            output.errors = {row: _why_not(float(peaks[row])) for row in np.flatnonzero(~healthy).tolist()}
        if raw is not None:
            asking = plan.logprob_rows.tolist()
            logprobs = token_logprobs(raw, torch.from_numpy(output.token_ids[asking]), plan.logprob_counts)
            output.logprobs = dict(zip(asking, logprobs, strict=True))
        return output

    def draft(self, logits: Tensor, slots: np.ndarray, positions: np.ndarray, tag: int = 0) -> Tensor:
        """Choose a draft for `positions` [N] of requests from a drafter's logits fp32 [N, V]: token ids [N].

        Uses the requests' parameters without edits. Tag 0 uses the noise of the target, so that models that agree
        choose alike; other tags give independent noise.
        """
        return self._choose(logits, self.plan(slots), positions, tag)[0]

    def _choose(
        self, logits: Tensor, plan: RowPlan, positions: np.ndarray, tag: int = 0
    ) -> tuple[Tensor, Tensor]:
        keys = plan.no_keys if plan.seeds is None else self._column(row_keys(plan.seeds ^ tag, positions))
        return ops.sample(logits, plan.temperature, plan.top_k, plan.top_p, plan.min_p, keys)

    def plan(self, slots: np.ndarray) -> RowPlan:
        """Gather the parameters of the requests in `slots`."""
        if (known := self._plans.get(key := slots.tobytes())) is not None:
            return known
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        wanted = self._wanted[:, slots]
        edits = [
            (self._processors[index], np.flatnonzero(wanted[index]))
            for index in np.flatnonzero(wanted.any(axis=1)).tolist()
        ]
        temperature = self._temperature[slots]
        logprob_rows = np.flatnonzero(self._num_logprobs[slots] >= 0)
        self._plans[key] = RowPlan(
            edits=edits,
            temperature=self._column(temperature),
            top_k=self._column(self._top_k[slots]),
            top_p=self._column(self._top_p[slots]),
            min_p=self._column(self._min_p[slots]),
            seeds=self._seed[slots] if temperature.any() else None,
            no_keys=torch.zeros((len(slots), 2), dtype=torch.int32, device=self.device),
            logprob_rows=torch.from_numpy(logprob_rows),
            logprob_counts=self._num_logprobs[slots[logprob_rows]].tolist(),
        )
        return self._plans[key]

    def _column(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.device)


def token_logprobs(logprobs: Tensor, token_ids: Tensor, counts: list[int]) -> list[TokenLogprobs]:
    """Return an entry per row: the row's token with its rank, then its `counts[row]` most likely tokens.

    logprobs: float32 [N, V], normalised; token_ids: int64 [N]. Rank 1 is the most likely token;
    ties with the chosen token do not lower its rank. Source: vLLM v1/sample/sampler.py, gather_logprobs.
    """
    token_ids = token_ids.to(logprobs.device)
    chosen = logprobs.gather(-1, token_ids.unsqueeze(-1))
    ranks = ((logprobs > chosen).sum(-1) + 1).tolist()
    best = logprobs.topk(max(counts), dim=-1)
    all_ids = torch.cat((token_ids[:, None], best.indices), dim=1).tolist()
    all_values = torch.cat((chosen, best.values), dim=1).tolist()
    return [
        TokenLogprobs(ids[: 1 + count], values[: 1 + count], rank)
        for ids, values, rank, count in zip(all_ids, all_values, ranks, counts, strict=True)
    ]


def resolve_num_logprobs(asked: int | None, vocab_size: int) -> int:
    """Resolve the number of alternatives to report; -1: no logprobs (vLLM's -1 is the whole vocabulary)."""
    if asked is None:
        return -1
    return vocab_size if asked == -1 else min(asked, vocab_size)


def _why_not(peak: float) -> str:
    if np.isnan(peak) or peak > 0:
        kind = "NaN" if np.isnan(peak) else "infinite"
        return f"the model produced {kind} logits for this request; it was stopped, others run on"
    return (
        "every token is forbidden: structured_outputs, allowed_token_ids, bad_words and min_tokens together "
        "leave none to sample"
    )
