"""The seam for drafters: after every step they may propose the next tokens.

    step        target computes [ newest, draft 1 .. draft k ]  -> its own next token at each of them
    accept      drafts are kept as far as they agree, and one token more          (engine/sample/draft_acceptance.py)
    propose     the drafter reads the new end of every request and proposes drafts for the next step

A bad drafter costs time, never correctness. Source: vLLM v1/spec_decode (its proposers), and
Leviathan et al. 2023 for the idea.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from engine.attention.backend import AttentionBackend
from engine.config import ModelConfig, SpeculativeConfig
from engine.config.settings import load_class
from engine.core.sched_output import RequestInit
from engine.models.loader import CausalLM
from engine.quant.kv_cache import KVCache
from engine.sample.sampler import Sampler

DRAFTERS: dict[str, str] = {
    "ngram": "engine.spec.ngram:NgramDrafter",
    "suffix": "engine.spec.suffix:SuffixDrafter",
    "draft_model": "engine.spec.draft_model:DraftModelDrafter",
    "eagle": "engine.spec.eagle:EagleDrafter",
    "medusa": "engine.spec.medusa:MedusaDrafter",
}
"""Method -> the drafter's class, imported when it is used."""


@dataclass(slots=True)
class DrafterContext:
    """Arguments of a drafter's constructor."""

    config: SpeculativeConfig
    model_config: ModelConfig  # ModelConfig of the target
    model: CausalLM  # Target model
    num_slots: int  # Number of state slots: requests that can run at once
    device: torch.device
    backend: AttentionBackend
    kv_cache: KVCache  # Layers of the target, then those of the drafter
    sampler: Sampler
    """`Sampler.draft` chooses drafts with the parameters and noise of the requests, as the target does."""
    max_model_len: int
    record: bool = False
    """Whether decode steps are replayed, so that drafting may be too (`engine/spec/chain.py`)."""
    draft_model: nn.Module | None = None
    """Draft model, whose layers come after the target's in the cache, or Medusa heads; None for methods without one."""


@dataclass(slots=True)
class DraftStep:
    """A step after sampling: R rows, T computed tokens; see `ModelInput` for their order."""

    slots: np.ndarray  # int64 [R]: state slot of each row
    starts: np.ndarray  # int64 [R]: position of the first token that the step computed
    lengths: np.ndarray  # int64 [R]: tokens known now, the newest included
    max_drafts: list[int]  # [R]: maximum number of drafts; 0 for unfinished prompts and full requests
    token_ids: np.ndarray  # int32 [num_slots, max_model_len]: row `slot` starts with the request's tokens
    block_table: np.ndarray
    """int32 [num_slots, max_blocks]: row `slot` starts with the ids of the request's blocks."""
    num_blocks: np.ndarray  # int64 [num_slots]
    query_start: np.ndarray  # int64 [R + 1]: row r computed tokens query_start[r] .. query_start[r + 1] - 1.
    hidden: Tensor  # [T, hidden]: the target's states behind its last norm; valid until the next forward pass


@runtime_checkable
class Drafter(Protocol):
    """Propose tokens. `speculative_config={"method": "package.module:Class", ...}` takes such a class."""

    def __init__(self, context: DrafterContext) -> None: ...

    def add_request(self, slot: int, init: RequestInit, start: int) -> None:
        """A request starts or resumes in `slot`; the first `start` tokens were found in the prefix cache."""
        ...

    def remove_request(self, slot: int) -> None:
        """The request of `slot` finished or was preempted."""
        ...

    def propose(self, step: DraftStep) -> list[list[int]]:
        """Return up to `max_drafts[row]` drafts for each of the R rows."""
        ...


def drafter_class(method: str) -> type[Drafter]:
    """Return the class of a method, or of a path `package.module:Class`."""
    methods = ("add_request", "remove_request", "propose")
    path = DRAFTERS.get(method, method)
    loaded: type[Drafter] = load_class(path, "speculative method", methods, "Drafter in engine/spec/base.py")
    return loaded


class DraftLengths:
    """Number of drafts of each state slot: constant, or adapted to the drafts accepted lately.

    Source: the schedule "heuristic" of assisted generation in transformers (two more after a full success, one less
    after a failure), here for each request.
    """

    def __init__(self, config: SpeculativeConfig, num_slots: int) -> None:
        self._most = config.num_speculative_tokens
        self._adaptive = config.adaptive
        self._largest_batch = config.disable_by_batch_size or num_slots
        self._lengths = [self._most] * num_slots

    def reset(self, slot: int) -> None:
        """Reset `slot` for a new request."""
        self._lengths[slot] = self._most

    def observe(self, slot: int, num_drafts: int, num_accepted: int) -> None:
        """Note that a step accepted some of `num_drafts` > 0 drafts of a request."""
        if not self._adaptive:
            return
        if num_accepted == num_drafts:
            self._lengths[slot] = min(self._most, self._lengths[slot] + 2)
        else:
            self._lengths[slot] = max(1, self._lengths[slot] - 1)

    def wanted(self, slots: np.ndarray, num_rows: int) -> list[int]:
        """Return [R]: drafts for each slot after a step of `num_rows` requests."""
        if num_rows > self._largest_batch:
            return [0] * len(slots)
        return [self._lengths[slot] for slot in slots.tolist()]
