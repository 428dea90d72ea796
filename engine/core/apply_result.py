"""What a step's result means for one request: is it possible, where does it end, what is told of it.

    sampled [t0 t1 t2 t3]  ->  appended one by one  ->  t2 ends the request  ->  output [t0 t1 t2]

Source: check_stop in vLLM v1/core/sched/utils.py, and update_from_output in v1/core/sched/scheduler.py.
"""

from __future__ import annotations

from engine.core.errors import WorkerContractError
from engine.core.request import Request, RequestStatus
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, Scheduled, TokenLogprobs

_RUNNING = RequestStatus.RUNNING
"""Looking an enum member up for every token costs more than using it."""


def check_sampled(request: Request, row: Scheduled, sampled: list[int]) -> None:
    """A row that reached its request's last known token has sampled; any other has not."""
    if row.start + row.num_tokens < len(request.token_ids):
        least = most = 0
    else:
        least, most = 1, 1 + len(row.spec_token_ids)
    if not least <= len(sampled) <= most:
        raise WorkerContractError(
            f"step row of {row.request_id!r}: {len(sampled)} sampled tokens where {least} to {most} "
            f"are possible (start {row.start}, {row.num_tokens} scheduled, {request.num_tokens} known)"
        )


def append_sampled(request: Request, sampled: list[int]) -> tuple[RequestStatus, list[int]]:
    """Append sampled tokens up to the one that ends the request; the rest never existed."""
    for index, token_id in enumerate(sampled):
        request.token_ids.append(token_id)
        if request.grammar is not None and not request.grammar.accept_tokens([token_id]):
            return RequestStatus.FINISHED_ERROR, sampled[:index]
        status = _status_after(request, token_id)
        if status is not _RUNNING:
            return status, sampled[: index + 1]
    return _RUNNING, sampled


def _status_after(request: Request, token_id: int) -> RequestStatus:
    """Whether a request ends with the token just appended, and why. Stop strings are the frontend's."""
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
        return RequestStatus.FINISHED_STOPPED  # also where eos is to be ignored: nothing may follow
    if num_tokens >= request.max_num_tokens:
        return RequestStatus.FINISHED_LENGTH
    return _RUNNING


def usable_drafts(request: Request, drafts: list[int]) -> list[int]:
    """Those that could still become output: the step itself adds one token more."""
    if request.grammar is not None:
        drafts = request.grammar.validate_tokens(drafts)
    return drafts[: request.max_num_tokens - request.num_tokens - 1]


def new_prompt_logprobs(
    request: Request, row: Scheduled, result: ModelRunnerOutput
) -> list[TokenLogprobs] | None:
    """Those not delivered before: after a preemption the prompt is computed again."""
    computed = result.prompt_logprobs.get(row.request_id)
    if not computed:
        return None
    new = computed[max(0, request.num_prompt_logprobs - row.start) :]
    request.num_prompt_logprobs += len(new)
    return new or None


def last_output(request: Request, new_token_ids: list[int]) -> EngineCoreOutput:
    """Of a request that has just ended."""
    return EngineCoreOutput(
        request.request_id,
        new_token_ids,
        finish_reason=request.status.finish_reason,
        stop_reason=request.stop_reason,
        num_cached_tokens=max(0, request.num_cached_tokens),
        cached_tokens_by_source=request.cached_tokens_by_source,
        events=request.events,
        num_preemptions=request.num_preemptions,
        kv_transfer_params=request.kv_handoff,
    )
