"""Find where a request ends: stop tokens, end-of-sequence, max_tokens, the end of its grammar.

    sampled [t0 t1 t2 t3]  ->  appended one by one  ->  t2 ends the request  ->  new tokens [t0 t1 t2]

The frontend finds stop strings, because they need text. Source: check_stop in vLLM v1/core/sched/utils.py.
"""

from __future__ import annotations

from engine.core.errors import WorkerContractError
from engine.core.request import Request, RequestStatus
from engine.core.sched_output import Scheduled

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
