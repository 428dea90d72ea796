"""The values that flow between scheduler and worker in one step.

Everything here is plain data: it pickles to a worker in another process, a trace can hold it and a debugger can show
it. Source: vLLM v1/core/sched/output.py and v1/outputs.py, with one list of rows in place of parallel lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engine.core.request import MultiModalFeature, Request
from engine.sampling_params import SamplingParams


class Reason(StrEnum):
    """Reason why an unfinished request computes nothing in a step. Closed: a new cause needs a new member."""

    BUDGET_EXHAUSTED = "budget_exhausted"
    """The step's token budget is used up or, without chunked prefill, too little is left for the whole prompt.
    Details: need (tokens; in the shared entry those of the queue's head), left."""
    MAX_NUM_SEQS = "max_seqs"
    """As many requests run as `max_num_seqs` allows. Details: running."""
    NO_BLOCKS = "no_blocks"
    """Too few free blocks: for the whole sequence if it waits, for its next block if it ran and was preempted.
    Details: need, free and, of these, evictable (still cached)."""
    BEHIND_IN_QUEUE = "behind_in_queue"
    """A request ahead could not start and must not be overtaken, or was passed over and keeps the seat or blocks that
    this one would take (`engine/core/passed_over.py`). Details: passed (requests looked at before)."""
    LOWER_PRIORITY = "lower_priority"
    """Lost its blocks in this step to a more important request, which lacked some. Details: need, free, evictable."""
    PREFIX_IN_FLIGHT = "prefix_in_flight"
    """Its next block is being computed or copied in for another request of this step. Details: block (its index)."""
    GRAMMAR_COMPILING = "grammar_compiling"
    """Its grammar is being compiled. Details: none."""
    KV_TRANSFER = "kv_transfer"
    """KV that it can start with is on its way from another engine. Details: loads (not ended)."""
    OTHER_BATCH = "other_batch"
    """Several steps are under way (pipeline parallelism) and it belongs to another one, which computes it now or will,
    so that all steps have work. Details: most (requests in one step)."""
    NO_LORA_SLOT = "no_lora_slot"
    """Its adapter is not on the device and every slot is in use, or its slot is closed for a request ahead
    (`engine/core/lora_slots.py`). Details: slots, running (requests that use them)."""
    PREEMPTING = "preempting"
    """Another request lost its blocks in this step: admitting now would thrash. Details: preempted."""


PASSED_OVER = (Reason.PREFIX_IN_FLIGHT, Reason.GRAMMAR_COMPILING, Reason.KV_TRANSFER, Reason.NO_LORA_SLOT)
"""Reasons that end by themselves. A request with one of them may be overtaken, within its claims."""


@dataclass(slots=True)
class NotScheduled:
    """One reason and the figures behind it.

    The scheduler names the requests it looked at, and every running one that got no budget. `request_id is None` stands
    for all other waiting requests: they share one cause, and a list of 100,000 would cost more than the step.
    `reason_of` looks a request up.
    """

    request_id: str | None
    reason: Reason
    details: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class RequestInit:
    """State of a request that starts or resumes. It replaces all that the worker knew of it."""

    token_ids: list[int]
    """Prompt and, when resumed, the output so far."""
    num_prompt_tokens: int
    sampling_params: SamplingParams
    eos_token_ids: frozenset[int]
    seed: int
    lora_key: str | None = None
    mm_features: list[MultiModalFeature] = field(default_factory=list)
    """Images among the prompt's tokens."""
    wants_embedding: bool = False

    @classmethod
    def of(cls, request: Request) -> RequestInit:
        return cls(
            token_ids=list(request.token_ids),
            num_prompt_tokens=request.num_prompt_tokens,
            sampling_params=request.sampling_params,
            eos_token_ids=request.eos_token_ids,
            seed=request.seed,
            lora_key=request.lora_key,
            mm_features=request.mm_features,
            wants_embedding=request.wants_embedding,
        )


@dataclass(slots=True)
class Scheduled:
    """One row of the batch: compute `num_tokens` tokens of a request, from position `start` on.

    Rarely used fields default to an empty tuple, which costs nothing: a step makes hundreds of rows.
    """

    request_id: str
    start: int
    num_tokens: int
    new_block_ids: list[int]
    """Appended to the row's block table; with `init`, the whole table."""
    spec_token_ids: list[int] = field(default_factory=list)
    """Drafts among the scheduled tokens, behind the known ones."""
    init: RequestInit | None = None
    encoder_inputs: Sequence[MultiModalFeature] = ()
    """Images to encode before the forward pass: this row is the first to read them."""
    new_token_ids: Sequence[int] = ()
    """Sampled tokens from position `start` on. Set only if several processes run the model (tensor, pipeline parallel):
    one of them sampled, the others learn the tokens here."""


@dataclass(slots=True)
class SchedulerOutput:
    """One step's plan: everything a worker needs."""

    step: int
    scheduled: list[Scheduled] = field(default_factory=list)
    finished_request_ids: list[str] = field(default_factory=list)
    """Stopped running since the last step. The worker frees their slots first: a new request may use the same id."""
    preempted_request_ids: list[str] = field(default_factory=list)
    not_scheduled: list[NotScheduled] = field(default_factory=list)
    """Named requests first; at most one entry for the rest (`request_id is None`), last."""
    copy_out: list[tuple[int, int]] = field(default_factory=list)
    """(device block, host block) pairs. The worker runs copy_out, then copy_in, then the forward pass."""
    copy_in: list[tuple[int, int]] = field(default_factory=list)
    """(host block, device block) pairs, read by rows of this step."""
    dropped_encoder_hashes: list[str] = field(default_factory=list)
    """Encoded images to forget."""
    lora_loads: list[tuple[str, int]] = field(default_factory=list)
    """(adapter's key, slot): weights to copy to the device before the forward pass."""
    lora_drops: list[str] = field(default_factory=list)
    """Adapters to drop from host memory, after `lora_loads`."""
    lora_prefetches: list[tuple[str, int]] = field(default_factory=list)
    """(adapter's key, slot): weights to fetch into host memory and, unless it is -1, into this slot while the next
    steps run."""
    kv_connector_metadata: Any = None
    """Message of the KV connector's scheduler half to its worker half (`engine/core/connector.py`)."""

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(row.num_tokens for row in self.scheduled)


def reason_of(out: SchedulerOutput, request_id: str) -> NotScheduled | None:
    """Return why an unfinished request computes nothing in this step; None if it is scheduled."""
    if any(row.request_id == request_id for row in out.scheduled):
        return None
    rest = None
    for entry in out.not_scheduled:
        if entry.request_id == request_id:
            return entry
        if entry.request_id is None:
            rest = entry
    return rest


@dataclass(slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, most likely first after the token itself.

    `token_ids[0]` is the sampled (or prompt) token, and `rank` its rank (1 = most likely). The rest are the top-k
    alternatives.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


@dataclass(slots=True)
class GrammarBitmask:
    """Tokens that the structured rows of a step may choose from.

    `rows[i]` = (request id, index of the sampled position in its row: 0, or 1 + d behind draft d). Its mask is
    `words[i]`, int32 [ceil(V / 32)], token v at bit v % 32 of word v // 32 (xgrammar's layout).
    """

    rows: list[tuple[str, int]]
    words: Any
    """numpy int32 [len(rows), ceil(V / 32)]. Any, because the core imports no numpy."""
    errors: dict[str, str] = field(default_factory=dict)
    """Requests whose mask could not be made, and why. Their rows allow no token."""


@dataclass(slots=True)
class ModelRunnerOutput:
    """Results of one forward pass, by request id.

    A request whose prompt is not finished in this step has no entry in `sampled_token_ids`.
    """

    sampled_token_ids: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    """One entry per sampled token, for requests with `logprobs`."""
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    """Prompt positions computed in this step, in order: entry i of a row that started at `start` is the logprob of
    prompt token `start + i + 1`."""
    embeddings: dict[str, list[float]] = field(default_factory=dict)
    """Hidden state of the prompt's last token, normalised to length 1, for requests with `wants_embedding`."""
    draft_token_ids: dict[str, list[int]] = field(default_factory=dict)
    kv_connector_output: Any = None
    """`KVConnectorOutput` of the connector's worker half."""
    num_collectives: int = 0
    collective_bytes: int = 0
    """Bytes that the answering rank contributed to them, see `engine/parallel.py`."""
    errors: dict[str, str] = field(default_factory=dict)
    """Requests that cannot go on, and why: their logits are NaN, or every token is forbidden."""


@dataclass(slots=True)
class EngineCoreOutput:
    """One request's share of a step's result, on its way to the client."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    num_cached_tokens: int = 0
    cached_tokens_by_source: dict[str, int] = field(default_factory=dict)
    """`num_cached_tokens` by source: device, host, disk, p2p or external_unspecified. Zeros are left out."""
    events: list[tuple[str, float]] | None = None
    """The request's event list, sent with the last output."""
    num_preemptions: int = 0
    kv_transfer_params: dict[str, Any] | None = None
    """Set in the last output of a request whose KV another engine may fetch."""
    embedding: list[float] | None = None
    error: str | None = None
    """Human-readable cause when `finish_reason == "error"`."""
