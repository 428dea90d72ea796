"""Logits processors: biases, penalties, bans, and those of users.

Each processor keeps its state of a request under the request's state slot and edits only rows that use it, so unused
features cost nothing. Processors run in the order of `BUILTIN_PROCESSORS`, then those of the user.

Source: vLLM v1/sample/logits_processor and v1/sample/ops/penalties.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from engine.core.sched_output import RequestInit


@dataclass(slots=True)
class SampleBatch:
    """The S positions that are sampled in this step, with the tokens of their requests."""

    slots: np.ndarray  # int64 [S]: state slot of the request, constant while it runs
    lengths: np.ndarray  # int64 [S]: number of known tokens, the position of the sampled one
    num_prompt_tokens: np.ndarray  # int64 [S]
    token_ids: np.ndarray  # int32 [num_slots, max_model_len]: row `slot` starts with the request's tokens
    num_drafts: np.ndarray | None = None
    """int64 [S]: number of known tokens that are drafts, accepted or not. A request with drafts has several
    consecutive rows, each one token longer. None: no row has drafts."""


@runtime_checkable
class LogitsProcessor(Protocol):
    """The seam for `logits_processors`, which takes such classes or paths to them.

    A class with `filters = True` applies top-k and top-p to its requests itself: the sampler leaves them out.
    """

    def __init__(self, vocab_size: int, num_slots: int, device: torch.device) -> None: ...

    def add_request(self, slot: int, init: RequestInit) -> bool:
        """Add a request that starts or resumes; return False if its logits need no edits."""
        ...

    def remove_request(self, slot: int) -> None:
        """Remove the request of a slot. Called only after an `add_request` that returned True."""
        ...

    def apply(self, logits: Tensor, rows: np.ndarray, batch: SampleBatch) -> None:
        """Edit float32 logits [S, V] in place, in `rows` (indices into the batch) and nowhere else."""
        ...


class _SlotValues(ABC):
    """Base of processors that keep one value for each request they edit."""

    def __init__(self, vocab_size: int, num_slots: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self.values: dict[int, Any] = {}

    @abstractmethod
    def value_of(self, init: RequestInit) -> Any:
        """Return what to keep for a request; None if its logits need no edits."""

    def add_request(self, slot: int, init: RequestInit) -> bool:
        if (value := self.value_of(init)) is not None:
            self.values[slot] = value
        return value is not None

    def remove_request(self, slot: int) -> None:
        del self.values[slot]

    def known(self, token_ids: Iterable[int]) -> list[int]:
        return [token_id for token_id in token_ids if token_id < self.vocab_size]


class LogitBias(_SlotValues):
    """Add a constant to the logits of chosen tokens."""

    def value_of(self, init: RequestInit) -> tuple[np.ndarray, np.ndarray] | None:
        bias = init.sampling_params.logit_bias or {}
        tokens = self.known(bias)
        values = np.array([bias[token] for token in tokens], np.float32)
        return (np.array(tokens, np.int64), values) if bias else None

    def apply(self, logits: Tensor, rows: np.ndarray, batch: SampleBatch) -> None:
        biases = [self.values[slot] for slot in batch.slots[rows].tolist()]
        index = _row_token_index(rows, [tokens for tokens, _ in biases], logits.device)
        values = torch.from_numpy(np.concatenate([values for _, values in biases]))
        logits.index_put_(index, values.to(logits.device), accumulate=True)


class Penalties:
    """Penalties: discourage tokens that occurred before.

    Repetition scales the logits of tokens in prompt or output towards "unlikely"; presence and frequency subtract from
    those in the output. Each step adds the tokens that are new in the token table to the counts.
    """

    def __init__(self, vocab_size: int, num_slots: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self._line_of = np.full(num_slots, -1)  # slot -> row of the tables below, which grow on demand
        self._free_lines: list[int] = []
        self._counted = np.zeros(num_slots, np.int64)  # tokens of the request that are counted
        self._in_prompt = torch.zeros((0, vocab_size), dtype=torch.bool, device=device)
        self._counts = torch.zeros((0, vocab_size), dtype=torch.int32, device=device)
        self._weights = torch.zeros((0, 3), device=device)  # repetition, presence, frequency

    def add_request(self, slot: int, init: RequestInit) -> bool:
        params = init.sampling_params
        weights = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
        if weights == (1.0, 0.0, 0.0):
            return False
        if not self._free_lines:
            self._grow()
        line = self._line_of[slot] = self._free_lines.pop()
        tokens = torch.tensor(init.token_ids)
        prompt, output = tokens[: init.num_prompt_tokens], tokens[init.num_prompt_tokens :]
        self._in_prompt[line] = torch.bincount(prompt, minlength=self.vocab_size)[: self.vocab_size] > 0
        self._counts[line] = torch.bincount(output, minlength=self.vocab_size)[: self.vocab_size].int()
        self._weights[line] = torch.tensor(weights)
        self._counted[slot] = len(tokens)
        return True

    def remove_request(self, slot: int) -> None:
        self._free_lines.append(int(self._line_of[slot]))
        self._line_of[slot] = -1

    def apply(self, logits: Tensor, rows: np.ndarray, batch: SampleBatch) -> None:
        self._count_new_tokens(rows, batch)
        row_index = torch.from_numpy(rows).to(logits.device)
        lines = torch.from_numpy(self._line_of[batch.slots[rows]]).to(logits.device)
        counts = self._counts[lines]
        if batch.num_drafts is not None:
            _count_drafts(counts, rows, batch)
        repetition, presence, frequency = self._weights[lines].unsqueeze(-1).unbind(1)
        edited = logits[row_index]
        penalised = torch.where(edited > 0, edited / repetition, edited * repetition)
        edited = torch.where(self._in_prompt[lines] | (counts > 0), penalised, edited)
        edited -= frequency * counts
        edited -= presence * (counts > 0)
        logits[row_index] = edited

    def _count_new_tokens(self, rows: np.ndarray, batch: SampleBatch) -> None:
        """Count new tokens, one per request and round, so that no pair occurs twice in a round."""
        slots, lengths = batch.slots[rows], batch.lengths[rows]
        if batch.num_drafts is not None:
            first = batch.num_drafts[rows] == 0  # count only accepted tokens permanently
            slots, lengths = slots[first], lengths[first]
        while (behind := self._counted[slots] < lengths).any():
            slots, lengths = slots[behind], lengths[behind]
            tokens = batch.token_ids[slots, self._counted[slots]].astype(np.int64)
            self._counted[slots] += 1
            index = (torch.from_numpy(self._line_of[slots]), torch.from_numpy(tokens))
            self._counts[tuple(i.to(self._counts.device) for i in index)] += 1

    def _grow(self) -> None:
        old = len(self._counts)
        extra = max(8, old)
        self._free_lines.extend(range(old, old + extra))
        for name in ("_in_prompt", "_counts", "_weights"):
            table = getattr(self, name)
            setattr(self, name, torch.cat([table, table.new_zeros((extra, table.shape[1]))]))


class AllowedTokenIds(_SlotValues):
    """Forbid all tokens but those of a list."""

    def value_of(self, init: RequestInit) -> Tensor | None:
        allowed = init.sampling_params.allowed_token_ids
        if allowed is None:
            return None
        forbidden = torch.ones(self.vocab_size, dtype=torch.bool)
        forbidden[self.known(allowed)] = False
        return forbidden.to(self.device)

    def apply(self, logits: Tensor, rows: np.ndarray, batch: SampleBatch) -> None:
        for row, slot in zip(rows.tolist(), batch.slots[rows].tolist(), strict=True):
            logits[row].masked_fill_(self.values[slot], -torch.inf)


class BadWords(_SlotValues):
    """Forbid the last token of a bad word directly after its other tokens.

    Only output counts: a prompt that ends in the middle of a bad word does not forbid its end.
    """

    def value_of(self, init: RequestInit) -> list[list[int]] | None:
        words = init.sampling_params.bad_words_token_ids
        return [word for word in words if word[-1] < self.vocab_size] or None

    def apply(self, logits: Tensor, rows: np.ndarray, batch: SampleBatch) -> None:
        forbidden = []
        for row in rows.tolist():
            slot, end = batch.slots[row], batch.lengths[row]
            said = batch.token_ids[slot, batch.num_prompt_tokens[row] : end].tolist()
            forbidden.append(
                [word[-1] for word in self.values[slot] if said[len(said) - len(word) + 1 :] == word[:-1]]
            )
        _forbid(logits, rows, forbidden)


class MinTokens(_SlotValues):
    """Forbid tokens that end the output before `min_tokens`."""

    def value_of(self, init: RequestInit) -> tuple[int, list[int]] | None:
        params = init.sampling_params
        stops = self.known(sorted({*init.eos_token_ids, *(params.stop_token_ids or ())}))
        has_enough = len(init.token_ids) - init.num_prompt_tokens >= params.min_tokens
        return None if has_enough or not stops else (params.min_tokens, stops)

    def apply(self, logits: Tensor, rows: np.ndarray, batch: SampleBatch) -> None:
        num_said = (batch.lengths - batch.num_prompt_tokens)[rows].tolist()
        forbidden = []
        for said, slot in zip(num_said, batch.slots[rows].tolist(), strict=True):
            least, stops = self.values[slot]
            forbidden.append(stops if said < least else [])
        _forbid(logits, rows, forbidden)


BUILTIN_PROCESSORS: tuple[type[LogitsProcessor], ...]
BUILTIN_PROCESSORS = (LogitBias, Penalties, AllowedTokenIds, BadWords, MinTokens)
"""Processors in their order: edits before bans, so that no edit can lift a ban."""


def _count_drafts(counts: Tensor, rows: np.ndarray, batch: SampleBatch) -> None:
    """Add the drafts before each row's position to its counts [len(rows), V]."""
    assert batch.num_drafts is not None
    num_drafts = batch.num_drafts[rows]
    line = np.repeat(np.arange(len(rows)), num_drafts)
    starts = np.repeat(batch.lengths[rows] - num_drafts, num_drafts)
    offset = np.arange(len(line)) - np.repeat(np.cumsum(num_drafts) - num_drafts, num_drafts)
    tokens = batch.token_ids[batch.slots[rows][line], starts + offset].astype(np.int64)
    ones = torch.ones(len(line), dtype=counts.dtype, device=counts.device)
    index = (torch.from_numpy(line).to(counts.device), torch.from_numpy(tokens).to(counts.device))
    counts.index_put_(index, ones, accumulate=True)


def _forbid(logits: Tensor, rows: np.ndarray, tokens_of_rows: Iterable[list[int]]) -> None:
    index = _row_token_index(rows, [np.array(tokens, np.int64) for tokens in tokens_of_rows], logits.device)
    logits[index] = -torch.inf


def _row_token_index(
    rows: np.ndarray, tokens_of_rows: list[np.ndarray], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the indices of all (row, token) pairs as two int64 tensors."""
    row_index = np.repeat(rows, [len(tokens) for tokens in tokens_of_rows])
    token_index = np.concatenate(tokens_of_rows)
    return torch.from_numpy(row_index).to(device), torch.from_numpy(token_index).to(device)
