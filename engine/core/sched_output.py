"""The values that flow between scheduler and worker in one step.

Everything here is plain data: it pickles to a worker in another process, a trace can hold it and a
debugger can show it. Source: vLLM v1/core/sched/output.py and v1/outputs.py, with one list of rows
in place of parallel lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.core.encoder_cache import MultiModalFeature
    from engine.sampling_params import SamplingParams


class Reason(StrEnum):
    """Why an unfinished request computes nothing in a step. Closed: a new cause needs a new member."""

    BUDGET_EXHAUSTED = "budget_exhausted"
    """The step's token budget is used up, or without chunked prefill, what is left of it is too small for
    the whole prompt. Details: need (tokens; of the queue's head, for all the rest), left."""
    MAX_NUM_SEQS = "max_seqs"
    """As many requests run as `max_num_seqs` allows. Details: running."""
    NO_BLOCKS = "no_blocks"
    """Its blocks do not fit: those of the whole sequence when it waits, the next one when it ran, lost all
    its blocks and waits again. Details: need, free and, of these, evictable (still cached)."""
    BEHIND_IN_QUEUE = "behind_in_queue"
    """Somebody ahead could not start, and nobody overtakes. Details: passed (requests looked at)."""
    LOWER_PRIORITY = "lower_priority"
    """Lost its blocks in this step to a more important request. Details: what that one lacked: need, free,
    evictable."""
    PREFIX_IN_FLIGHT = "prefix_in_flight"
    """Its next block is being computed or copied in for another request of this step. Details: block (its index)."""
    GRAMMAR_COMPILING = "grammar_compiling"
    """Its grammar is being compiled; others go on. Details: none."""
    KV_TRANSFER = "kv_transfer"
    """KV that it can start with is on its way from another engine. Details: loads (that have not ended)."""
    OTHER_BATCH = "other_batch"
    """Several steps are under way (pipeline parallelism) and it belongs to another one: it is being computed there, or
    waits for the next so that all have work. Details: most (requests in one step)."""
    NO_LORA_SLOT = "no_lora_slot"
    """Its adapter is not on the device and every slot there is in use, or its slot is kept for somebody ahead.
    Others may go on (`engine/core/lora_slots.py`). Details: slots, and the running requests that use them."""
    PREEMPTING = "preempting"
    """Another request lost its blocks in this step: admitting now would thrash. Details: preempted."""


@dataclass(slots=True)
class NotScheduled:
    """One reason and the figures behind it.

    The scheduler names the requests it looked at, and every running one that got no budget.
    `request_id is None` stands for every other waiting request: they share one cause, and a list of
    100,000 would cost more than the step. `reason_of` looks a request up.
    """

    request_id: str | None
    reason: Reason
    details: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class RequestInit:
    """What a worker must learn when a request starts or resumes: the row replaces all it knew."""

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


@dataclass(slots=True)
class Scheduled:
    """One row of the batch: compute `num_tokens` tokens of a request, from position `start` on.

    What most rows have not is an empty tuple, which costs nothing: hundreds of rows are made in a step.
    """

    request_id: str
    start: int
    num_tokens: int
    new_block_ids: list[int]
    """Appended to the row's block table; with `init`, the whole table."""
    spec_token_ids: list[int] = field(default_factory=list)
    """Drafts among the scheduled tokens; they sit behind the tokens that are already known."""
    init: RequestInit | None = None
    encoder_inputs: Sequence[MultiModalFeature] = ()
    """Images to encode before the forward pass: the row reads them and no other row has before."""
    new_token_ids: Sequence[int] = ()
    """The known tokens from position `start` on that were sampled. Filled in where several processes run the model
    (tensor, pipeline parallel): one of them sampled, the others learn it here."""


@dataclass(slots=True)
class SchedulerOutput:
    """One step's plan: everything a worker needs, and nothing else."""

    step: int
    scheduled: list[Scheduled] = field(default_factory=list)
    finished_request_ids: list[str] = field(default_factory=list)
    """Left the running requests since the last step, finished or aborted: the worker frees their state
    slots before it looks at the rows, since a new request may use the same id."""
    preempted_request_ids: list[str] = field(default_factory=list)
    not_scheduled: list[NotScheduled] = field(default_factory=list)
    """Named requests first; at most one entry for the rest (`request_id is None`), last."""
    copy_out: list[tuple[int, int]] = field(default_factory=list)
    """(device block, host block): content to keep. The worker runs copy_out, then copy_in, then the forward pass."""
    copy_in: list[tuple[int, int]] = field(default_factory=list)
    """(host block, device block): content that a row of this step reads."""
    dropped_encoder_hashes: list[str] = field(default_factory=list)
    """Encoded images that nobody will read again without encoding them anew."""
    lora_loads: list[tuple[str, int]] = field(default_factory=list)
    """(adapter's key, slot): weights to bring to the device before the forward pass."""
    kv_connector_metadata: Any = None
    """What the scheduler half of the KV connector tells the worker half (`engine/core/connector.py`)."""

    @property
    def num_scheduled_tokens(self) -> int:
        return sum(row.num_tokens for row in self.scheduled)


def reason_of(out: SchedulerOutput, request_id: str) -> NotScheduled | None:
    """Why an unfinished request computes nothing in this step; None if it is scheduled."""
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

    `token_ids[0]` is the sampled (or prompt) token with its rank in `rank` (1 = most likely); the
    rest are the top-k alternatives.
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int


@dataclass(slots=True)
class GrammarBitmask:
    """Which tokens the structured rows of a step may choose from.

    `rows[i]` = (request id, index of the sampled position in its row: 0, or 1 + d behind draft d); its mask is
    `words[i]`, int32 [ceil(V / 32)], token v at bit v % 32 of word v // 32 (xgrammar's layout).
    """

    rows: list[tuple[str, int]]
    words: Any
    """numpy int32 [len(rows), ceil(V / 32)]; Any, because this floor imports no numpy."""
    errors: dict[str, str] = field(default_factory=dict)
    """Requests whose mask could not be made, and why: nothing is allowed in their rows."""


@dataclass(slots=True)
class ModelRunnerOutput:
    """What one forward pass produced, by request id.

    A request whose prompt is not finished in this step has no entry in `sampled_token_ids`.
    """

    sampled_token_ids: dict[str, list[int]] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    """One entry per sampled token, for requests that asked."""
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    """For the prompt positions computed in this step, in order: entry i of a row that started at
    `start` is the logprob of prompt token `start + i + 1`."""
    embeddings: dict[str, list[float]] = field(default_factory=dict)
    """Of requests that asked and whose prompt is computed: the last token's hidden state, of length 1."""
    draft_token_ids: dict[str, list[int]] = field(default_factory=dict)
    kv_connector_output: Any = None
    """What the worker half of the KV connector reports: transfers that ended, blocks that could not be loaded."""
    num_collectives: int = 0
    collective_bytes: int = 0
    """What the answering rank said to other ranks in this step, see `engine/parallel.py`."""
    errors: dict[str, str] = field(default_factory=dict)
    """Requests that cannot go on, and why (their logits are NaN, every token is forbidden). Others can."""


@dataclass(slots=True)
class EngineCoreOutput:
    """What one step means for one request, on its way to the client."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None
    num_cached_tokens: int = 0
    cached_tokens_by_source: dict[str, int] = field(default_factory=dict)
    """The same, by where they were: device, host, disk, p2p or external_unspecified. Zeros are left out."""
    events: list[tuple[str, float]] | None = None
    """The request's event list, sent with the last output."""
    num_preemptions: int = 0
    kv_transfer_params: dict[str, Any] | None = None
    """With the last output of a request whose KV another engine may fetch."""
    embedding: list[float] | None = None
    error: str | None = None
    """Human-readable cause when `finish_reason == "error"`."""
