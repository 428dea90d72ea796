"""Apply a step's result to one request: check it, find where the request ends, build its output.

    sampled [t0 t1 t2 t3]  ->  appended one by one  ->  t2 ends the request  ->  output [t0 t1 t2]

Source: check_stop in vLLM v1/core/sched/utils.py, and update_from_output in v1/core/sched/scheduler.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.errors import WorkerContractError
from engine.core.request import Request, RequestStatus
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, Scheduled, TokenLogprobs

_RUNNING = RequestStatus.RUNNING
"""Looking an enum member up for every token costs more than using it."""


def append_sampled(request: Request, row: Scheduled, sampled: list[int]) -> tuple[RequestStatus, list[int]]:
    """Append sampled tokens up to the one that ends the request, and drop the rest.

    Returns the request's status and the tokens appended; FINISHED_ERROR if its grammar forbids the next token. Raises
    WorkerContractError unless exactly the rows that reached their last known token have sampled.
    """
    is_reached = row.start + row.num_tokens >= len(request.token_ids)
    least, most = (1, 1 + len(row.spec_token_ids)) if is_reached else (0, 0)
    if not least <= len(sampled) <= most:
        raise WorkerContractError(
            f"step row of {row.request_id!r}: {len(sampled)} sampled tokens where {least} to {most} "
            f"are possible (start {row.start}, {row.num_tokens} scheduled, {request.num_tokens} known)"
        )
    for index, token_id in enumerate(sampled):
        request.token_ids.append(token_id)
        if request.grammar is not None and not request.grammar.accept_tokens([token_id]):
            return RequestStatus.FINISHED_ERROR, sampled[:index]
        status = _status_after(request, token_id)
        if status is not _RUNNING:
            return status, sampled[: index + 1]
    return _RUNNING, sampled


def _status_after(request: Request, token_id: int) -> RequestStatus:
    """Return how a request ends with the token just appended, or RUNNING. The frontend handles stop strings."""
    params = request.sampling_params
    num_tokens = len(request.token_ids)
    num_output_tokens = num_tokens - len(request.prompt_token_ids)
    if num_output_tokens >= params.min_tokens:
        if token_id in request.eos_token_ids and not params.ignore_eos:
            return RequestStatus.FINISHED_STOPPED
        if params.stop_token_ids and token_id in params.stop_token_ids:
            request.stop_reason = token_id
            return RequestStatus.FINISHED_STOPPED
    if request.grammar is not None and request.grammar.is_terminated():
        return RequestStatus.FINISHED_STOPPED  # despite ignore_eos: no token may follow
    if num_tokens >= request.max_num_tokens:
        return RequestStatus.FINISHED_LENGTH
    return _RUNNING


def usable_drafts(request: Request, drafts: list[int]) -> list[int]:
    """Return the drafts that could still become output: the step itself adds one more token."""
    if request.grammar is not None:
        drafts = request.grammar.validate_tokens(drafts)
    return drafts[: request.max_num_tokens - request.num_tokens - 1]


def make_output(
    request: Request, row: Scheduled, result: ModelRunnerOutput, new_token_ids: list[int]
) -> EngineCoreOutput | None:
    """Build what a row's result means for the client; None if there is nothing to say."""
    prompt_logprobs = _new_prompt_logprobs(request, row, result) if result.prompt_logprobs else None
    if request.status is not _RUNNING:
        output = last_output(request, new_token_ids)
    elif new_token_ids or prompt_logprobs:
        output = EngineCoreOutput(
            request.request_id,
            new_token_ids,
            num_cached_tokens=request.num_cached_tokens,
            cached_tokens_by_source=request.cached_tokens_by_source,
        )
    else:
        return None
    output.prompt_logprobs = prompt_logprobs
    if result.embeddings:
        output.embedding = result.embeddings.get(row.request_id)
    if result.logprobs and (logprobs := result.logprobs.get(row.request_id)):
        output.logprobs = logprobs[: len(new_token_ids)]
    return output


def _new_prompt_logprobs(
    request: Request, row: Scheduled, result: ModelRunnerOutput
) -> list[TokenLogprobs] | None:
    """Return those not delivered before: after a preemption the prompt is computed again."""
    computed = result.prompt_logprobs.get(row.request_id)
    if not computed:
        return None
    new = computed[max(0, request.num_prompt_logprobs - row.start) :]
    request.num_prompt_logprobs += len(new)
    return new or None


def last_output(
    request: Request, new_token_ids: Sequence[int] = (), error: str | None = None
) -> EngineCoreOutput:
    """Build the last output of a request that has just ended."""
    return EngineCoreOutput(
        request.request_id,
        list(new_token_ids),
        finish_reason="error" if error else request.status.finish_reason,
        stop_reason=request.stop_reason,
        num_cached_tokens=max(0, request.num_cached_tokens),
        cached_tokens_by_source=request.cached_tokens_by_source,
        events=request.events,
        num_preemptions=request.num_preemptions,
        kv_transfer_params=request.kv_handoff,
        error=error,
    )
