"""Build the output of one row of a step: what the client gets of the result.

Source: update_from_output in vLLM v1/core/sched/scheduler.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.request import Request, RequestStatus
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, Scheduled, TokenLogprobs

_RUNNING = RequestStatus.RUNNING  # a lookup for every row would cost more than the comparison


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
