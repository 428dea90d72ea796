"""A request and everything the scheduler knows about it.

Source: vLLM v1/request.py, without what only asynchronous scheduling needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

    from engine.core.blocks import Block
    from engine.core.grammar_protocol import CompiledGrammar, Grammar
    from engine.sampling_params import SamplingParams


class RequestStatus(IntEnum):
    """State of a request. `FINISHED_STOPPED` and all after it are final."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    WAITING_GRAMMAR = 3
    """Its grammar is being compiled."""
    FINISHED_STOPPED = 10
    FINISHED_LENGTH = 11
    FINISHED_ABORTED = 12
    FINISHED_ERROR = 13

    @property
    def is_finished(self) -> bool:
        return self >= RequestStatus.FINISHED_STOPPED

    @property
    def finish_reason(self) -> str | None:
        """Return what a client sees: stop, length, abort, error; None while the request is unfinished."""
        return _FINISH_REASON.get(self)


_FINISH_REASON = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
    RequestStatus.FINISHED_ERROR: "error",
}


@dataclass(frozen=True, slots=True)
class MultiModalFeature:
    """One image of a prompt."""

    mm_hash: str
    """Hash of its content: its key in the encoder cache, and part of the prefix cache's keys."""
    offset: int
    """Position of its first placeholder token."""
    num_tokens: int
    data: Any
    """Input of the encoder."""

    def overlaps(self, start: int, end: int) -> bool:
        """Whether tokens [start, end) hold one of its placeholders."""
        return start < self.offset + self.num_tokens and self.offset < end


@dataclass(eq=False, slots=True)
class Request:
    """One sequence to complete.

    `token_ids` holds all known tokens; the first `num_computed_tokens` of them have KV in the cache. A step computes
    tokens from there on:

        token_ids   [ prompt .............. | output ..... ]  + spec_token_ids
                      ^0        ^num_computed_tokens
                      KV exists | still to compute
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    arrival_time: float = 0.0
    priority: int = 0
    """Lower runs first, as in vLLM. Used only with `policy="priority"`."""
    eos_token_ids: frozenset[int] = frozenset()
    seed: int = 0
    """Key of the sampling noise: the user's seed, or one drawn by the frontend."""
    lora_key: str | None = None
    """Identity of the adapter: name, path, load counter."""
    cache_salt: str | None = None
    wants_embedding: bool = False
    """Return the hidden state of the prompt's last token, and drop the sampled token."""
    mm_features: list[MultiModalFeature] = field(default_factory=list)
    """Images among the prompt's tokens, in order."""

    grammar_future: Future[CompiledGrammar] | None = field(default=None, repr=False)
    """The grammar of structured outputs, compiled or still compiling. Set by the engine core."""
    grammar: Grammar | None = field(default=None, repr=False)
    """Place in the grammar, advanced by every output token. A preemption does not change it."""

    token_ids: list[int] = field(init=False)
    num_computed_tokens: int = 0
    spec_token_ids: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    """The block table: block i holds the KV of tokens [i * block_size, (i + 1) * block_size)."""
    host_blocks: list[Block] = field(default_factory=list)
    """Host copies of the block table's first blocks, after a preemption by swap; empty while it runs."""
    block_hashes: list[bytes] = field(default_factory=list)
    """One per full block of `token_ids`, computed or not."""
    num_published_blocks: int = 0
    """Leading blocks that `KVManager.publish` has handled."""
    num_blocks_behind_window: int = 0
    """Leading entries of the block table that hold the null block: no later token sees them."""
    max_num_tokens: int = 0
    """Length at which the request ends at the latest. Set by `Scheduler.add`."""
    sort_key: tuple[int, float, int] = (0, 0.0, 0)
    """Place among all requests; smaller is more important. Set by `Scheduler.add`."""
    num_prompt_logprobs: int = 0
    """Prompt positions whose logprobs were delivered: recomputation must not deliver them again."""
    status: RequestStatus = RequestStatus.WAITING
    stop_reason: int | str | None = None
    num_cached_tokens: int = -1
    """Prefix-cache hit at the first admission, in tokens; -1 before."""
    has_fetched: bool = False
    """The KV connector has been asked for its KV; this happens once per request."""
    cached_tokens_by_source: dict[str, int] = field(default_factory=dict)
    """`num_cached_tokens` by source: device, host, or a KV connector's source. Zeros are left out."""
    num_external_tokens: int = 0
    """Tokens whose KV came from another engine."""
    external_source: str = ""
    """Their name in `cached_tokens_by_source`."""
    kv_handoff: dict[str, Any] | None = None
    """`kv_transfer_params` of its last output: where another engine finds its KV."""
    num_preemptions: int = 0
    in_flight_step: int = -1
    """Step that computes it now; -1 if none does."""
    events: list[tuple[str, float]] = field(default_factory=list)
    """(name, monotonic seconds): QUEUED, SCHEDULED, PREEMPTED, FIRST_TOKEN, FINISHED."""

    @property
    def kv_transfer_params(self) -> dict[str, Any] | None:
        """The caller's parameters for KV in other engines (`SamplingParams.extra_args`)."""
        extra_args = self.sampling_params.extra_args
        return None if extra_args is None else extra_args.get("kv_transfer_params")

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[len(self.prompt_token_ids) :]
