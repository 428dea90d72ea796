"""One pipeline from logits to tokens for all rows of a step, whatever each of them asked for.

    logits --[ bias, penalties, allowed ids, bad words, min tokens, user's own ]-->  edits, -inf = banned
           --[ / temperature ]--[ min_p, top_k, top_p: one floor per row ]--[ + noise ]-->  argmax

Rows that asked for nothing skip every stage: a batch of greedy requests is one argmax. What the rows
want is looked up when the batch changes and kept while it stays the same.

Source: vLLM v1/sample/sampler.py for the order; the floor and the noise are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from engine.core.sched_output import RequestInit, TokenLogprobs
from engine.sample.logprobs import token_logprobs
from engine.sample.processors import BUILTIN_PROCESSORS, LogitsProcessor, SampleBatch
from engine.sample.rng import gumbel_noise, gumbel_noise_torch, row_keys


@dataclass(slots=True)
class SamplerOutput:
    """What each of the S rows of a batch got."""

    token_ids: np.ndarray
    """int64 [S]; meaningless in the rows of `errors`."""
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """By row, for those that asked: of the raw logits, before any edit."""
    errors: dict[int, str] = field(default_factory=dict)
    """By row: why no token could be chosen."""


class Sampler:
    """Chooses the next token of each row.

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
        self._processors = [
            processor(vocab_size, num_slots, self.device) for processor in (*BUILTIN_PROCESSORS, *processors)
        ]
        self._wanted = np.zeros((len(self._processors), num_slots), bool)
        self._temperature = np.zeros(num_slots, np.float32)  # 0: greedy
        self._top_k = np.zeros(num_slots, np.int64)  # vocab_size: off
        self._top_p = np.ones(num_slots, np.float32)  # 1: off
        self._min_p = np.zeros(num_slots, np.float32)  # 0: off
        self._seed = np.zeros(num_slots, np.int64)
        self._num_logprobs = np.full(num_slots, -1)  # -1: none asked
        self._plan: _Plan | None = None

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
            self._wanted[index, slot] = processor.add_request(slot, init)
        self._plan = None

    def remove_request(self, slot: int) -> None:
        """The request of `slot` finished or was preempted."""
        for index, processor in enumerate(self._processors):
            if self._wanted[index, slot]:
                processor.remove_request(slot)
                self._wanted[index, slot] = False
        self._plan = None

    def __call__(self, logits: Tensor, batch: SampleBatch) -> SamplerOutput:
        """Choose a token per row of float32 logits [S, V], which are overwritten."""
        plan = self._plan_for(batch.slots)
        raw = logits[plan.logprob_rows].log_softmax(-1) if plan.logprob_counts else None
        for processor, rows in plan.edits:
            processor.apply(logits, rows, batch)
        token_ids, peaks = argmax_rows(logits)
        if len(plan.random_rows):
            token_ids[plan.random_rows] = self._draw(logits, peaks, plan, batch.lengths)
        output = SamplerOutput(token_ids)
        healthy = np.isfinite(peaks)
        if not healthy.all():
            output.errors = {row: _why_not(peaks[row]) for row in np.flatnonzero(~healthy).tolist()}
        if raw is not None:
            asking = plan.logprob_rows.tolist()
            found = token_logprobs(raw, torch.from_numpy(token_ids[asking]), plan.logprob_counts)
            output.logprobs = dict(zip(asking, found, strict=True))
        return output

    def _plan_for(self, slots: np.ndarray) -> _Plan:
        if self._plan is None or not np.array_equal(self._plan.slots, slots):
            self._plan = self._make_plan(slots)
        return self._plan

    def _make_plan(self, slots: np.ndarray) -> _Plan:
        edits = [
            (processor, rows)
            for processor, wanted in zip(self._processors, self._wanted, strict=True)
            if len(rows := np.flatnonzero(wanted[slots]))
        ]
        random_rows = np.flatnonzero(self._temperature[slots] > 0)
        random_slots = slots[random_rows]
        logprob_rows = np.flatnonzero(self._num_logprobs[slots] >= 0)
        return _Plan(
            slots=slots.copy(),
            edits=edits,
            random_rows=random_rows,
            seeds=self._seed[random_slots],
            temperature=self._column(self._temperature[random_slots]),
            floors=self._make_floors(random_slots),
            logprob_rows=torch.from_numpy(logprob_rows),
            logprob_counts=self._num_logprobs[slots[logprob_rows]].tolist(),
        )

    def _make_floors(self, slots: np.ndarray) -> _Floors:
        top_k, top_p, min_p = self._top_k[slots], self._top_p[slots], self._min_p[slots]
        with np.errstate(divide="ignore"):
            log_min_p = np.log(min_p)
        ranked_rows = np.flatnonzero((top_k < self.vocab_size) | (top_p < 1.0))
        return _Floors(
            log_min_p=self._column(log_min_p) if min_p.any() else None,
            ranked_rows=torch.from_numpy(ranked_rows).to(self.device),
            top_k=self._column(top_k[ranked_rows]),
            top_p=self._column(top_p[ranked_rows]),
        )

    def _column(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.device).unsqueeze(-1)

    def _draw(self, logits: Tensor, peaks: np.ndarray, plan: _Plan, positions: np.ndarray) -> np.ndarray:
        """Sample the rows with a temperature: int64 [R]."""
        rows = plan.random_rows
        if len(rows) < len(logits):
            logits = logits[torch.from_numpy(rows).to(self.device)]
        # Relative to the row's peak nothing can overflow, however small the temperature.
        scaled = logits.sub_(self._column(peaks[rows])).div_(plan.temperature)
        plan.floors.apply(scaled)
        keys = row_keys(plan.seeds, positions[rows])
        if self.device.type == "cpu":
            scaled += torch.from_numpy(gumbel_noise(keys, self.vocab_size))
        else:
            key_bits = torch.from_numpy(keys.view(np.int32)).to(self.device)
            scaled += gumbel_noise_torch(key_bits, self.vocab_size)
        return argmax_rows(scaled)[0]


@dataclass(slots=True)
class _Plan:
    """What the rows of a batch want, valid while the same requests stand in the same rows."""

    slots: np.ndarray
    edits: list[tuple[LogitsProcessor, np.ndarray]]
    random_rows: np.ndarray
    """int64 [R]: rows with a temperature; the rest is greedy. The next fields have R rows."""
    seeds: np.ndarray
    temperature: Tensor
    floors: _Floors
    logprob_rows: Tensor
    logprob_counts: list[int]


@dataclass(slots=True)
class _Floors:
    """min_p, top_k and top_p as one number per row: a token stays if its logit reaches the floor.

    So tokens with equal logits share their fate, and no order among them has to be invented.
    """

    log_min_p: Tensor | None
    """float32 [R, 1]; None if no row uses min_p."""
    ranked_rows: Tensor
    """int64 [K]: rows with top_k or top_p, which need their logits in order."""
    top_k: Tensor
    """int64 [K, 1], vocab_size where off."""
    top_p: Tensor
    """float32 [K, 1], 1 where off."""

    def apply(self, scaled: Tensor) -> None:
        """Ban what lies under the floor. `scaled` is [R, V] with a peak of 0 in every row."""
        if self.log_min_p is not None:
            scaled.masked_fill_(scaled < self.log_min_p, -torch.inf)
        if len(self.ranked_rows) == len(scaled):
            scaled.masked_fill_(scaled < self._ranked_floor(scaled), -torch.inf)
        elif len(self.ranked_rows):
            part = scaled[self.ranked_rows]
            scaled[self.ranked_rows] = part.masked_fill_(part < self._ranked_floor(part), -torch.inf)

    def _ranked_floor(self, scaled: Tensor) -> Tensor:
        """float32 [K, 1]: the lowest logit that top_k, then top_p among the survivors, let through."""
        ranked = sort_descending(scaled)
        top_k_floor = ranked.gather(-1, self.top_k - 1)
        ranked.masked_fill_(ranked < top_k_floor, -torch.inf)
        mass = ranked.softmax(-1).cumsum(-1)
        # The token that crosses p is the first whose mass reaches it, and it stays.
        crossing = (mass < self.top_p).sum(-1, keepdim=True).clamp_(max=scaled.shape[-1] - 1)
        top_p_floor = ranked.gather(-1, crossing).masked_fill_(self.top_p >= 1.0, -torch.inf)
        return torch.maximum(top_k_floor, top_p_floor)


def argmax_rows(values: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Where each row of [S, V] peaks and how high: int64 [S], float32 [S]. Ties go to the lowest id.

    A row with a NaN peaks at NaN. On a CPU numpy's argmax is vectorised, torch's is not.
    """
    if values.device.type == "cpu":
        table = values.numpy()
        peaks_at = table.argmax(-1)
        return peaks_at, table[np.arange(len(table)), peaks_at]
    index = values.argmax(-1, keepdim=True)
    return index.squeeze(-1).cpu().numpy(), values.gather(-1, index).squeeze(-1).cpu().numpy()


def sort_descending(values: Tensor) -> Tensor:
    """Each row of [K, V] from high to low. On a CPU numpy sorts several times faster than torch."""
    if values.device.type == "cpu":
        ordered = np.negative(values.numpy())
        ordered.sort(-1)
        return torch.from_numpy(np.negative(ordered, out=ordered))
    return values.sort(-1, descending=True).values


def resolve_num_logprobs(asked: int | None, vocab_size: int) -> int:
    """How many alternatives to report: -1 for no logprobs at all (vLLM's -1 means the whole vocabulary)."""
    if asked is None:
        return -1
    return vocab_size if asked == -1 else min(asked, vocab_size)


def _why_not(peak: float) -> str:
    if np.isnan(peak):
        return "the model produced NaN logits for this request; it was stopped, others run on"
    if peak > 0:
        return "the model produced infinite logits for this request; it was stopped, others run on"
    return (
        "every token is forbidden: allowed_token_ids, bad_words and min_tokens together leave none to sample"
    )
