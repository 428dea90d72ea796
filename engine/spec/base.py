"""The seam for drafters: after every step they may guess what comes next.

    step        target computes [ newest, draft 1 .. draft k ]  -> its own token behind each of them
    verify      drafts are kept as far as they agree, and one token more          (engine/sample/verify.py)
    propose     the drafter looks at the new end of every request and guesses the next step's drafts

A drafter never decides anything: a bad one costs time, not tokens. Source: vLLM v1/spec_decode (its proposers), and
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
from engine.config.classes import load_class
from engine.core.sched_output import RequestInit
from engine.models.registry import CausalLM
from engine.quant.kv_cache import KVCache
from engine.sample.sampler import Sampler

DRAFTERS: dict[str, str] = {
    "ngram": "engine.spec.ngram:NgramDrafter",
    "draft_model": "engine.spec.draft_model:DraftModelDrafter",
    "eagle": "engine.spec.eagle:EagleDrafter",
}
"""Method -> where the class lives; imported when asked for."""


@dataclass(slots=True)
class DrafterContext:
    """What a drafter is built from."""

    config: SpeculativeConfig
    model_config: ModelConfig
    """The target's."""
    model: CausalLM
    """The target."""
    num_slots: int
    """Requests that can run at once: state slots are 0 .. num_slots - 1."""
    device: torch.device
    backend: AttentionBackend
    kv_cache: KVCache
    """The target's layers, and behind them the drafter's."""
    sampler: Sampler
    """Knows the requests' parameters and noise: `Sampler.draft` chooses a draft as the target would choose."""
    max_model_len: int
    record: bool = False
    """Whether steps are recorded and replayed here, so that drafts may be too (`engine/spec/chain.py`)."""
    draft_model: nn.Module | None = None
    """What `config.model` names, with its layers behind the target's in the cache; None for methods without a model."""


@dataclass(slots=True)
class DraftStep:
    """A step whose tokens are chosen. R rows, T tokens computed; see `ModelInput` for their order."""

    slots: np.ndarray
    """int64 [R]: state slot of each row."""
    starts: np.ndarray
    """int64 [R]: position of the first token that the step computed."""
    lengths: np.ndarray
    """int64 [R]: tokens known now, the newest included."""
    max_drafts: list[int]
    """[R]: how many are wanted; 0 where the prompt goes on in the next step, or where nothing can follow."""
    token_ids: np.ndarray
    """int32 [num_slots, max_model_len]: row `slot` starts with the request's tokens."""
    block_table: np.ndarray
    """int32 [num_slots, max_blocks]: row `slot` starts with the ids of the request's blocks."""
    num_blocks: np.ndarray
    """int64 [num_slots]"""
    query_start: np.ndarray
    """int64 [R + 1]: row r computed tokens query_start[r] .. query_start[r + 1] - 1."""
    hidden: Tensor
    """[T, hidden]: the target's states behind its last norm; valid until the next forward pass."""


@runtime_checkable
class Drafter(Protocol):
    """Guesses tokens: `speculative_config={"method": "package.module:Class", ...}` takes classes like this."""

    def __init__(self, context: DrafterContext) -> None: ...

    def add_request(self, slot: int, init: RequestInit, start: int) -> None:
        """A request starts or resumes in `slot`; the first `start` tokens were found in the prefix cache."""
        ...

    def remove_request(self, slot: int) -> None:
        """The request of `slot` finished or was preempted."""
        ...

    def propose(self, step: DraftStep) -> list[list[int]]:
        """Drafts for each of the R rows, at most `max_drafts[row]`, most certain continuation first; may be none."""
        ...


def drafter_class(method: str) -> type[Drafter]:
    """The drafter of a method's name, or of one's own by dotted path `package.module:Class`."""
    methods = ("add_request", "remove_request", "propose")
    return load_class(
        DRAFTERS.get(method, method), "speculative method", methods, "Drafter in engine/spec/base.py"
    )
