"""Turn the core's token ids into outputs: text, log-probabilities, finish reasons, times.

Source: vLLM v1/engine/output_processor.py. Here a request ends in one place: after a stop string the core aborts the
request, which then ends with the core's last output like any other:

    update(core.step()) -> take_stopped() -> update(core.abort(...)) -> take_outputs()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from heapq import nlargest
from typing import Any

from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput, TokenLogprobs
from engine.frontend.detokenizer import Detokenizer, OutputText
from engine.frontend.parallel_sampling import SubmittedRequest
from engine.frontend.tokenizer import Tokenizer
from engine.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from engine.sampling_params import RequestOutputKind

STARTS = {"QUEUED": "queued_ts", "SCHEDULED": "scheduled_ts", "FIRST_TOKEN": "first_token_ts"}
"""Event -> the time of it: the earliest among a request's completions, where FINISHED is the latest."""


class OutputProcessor:
    """The output so far of every unfinished request."""

    def __init__(self, tokenizer: Tokenizer | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        self._requests: dict[str, _RequestState] = {}
        self._completions: dict[str, tuple[_RequestState, _CompletionState]] = {}
        """Completions by the id of the core's request, which differs from the caller's id if n > 1."""
        self._changed: dict[str, _RequestState] = {}
        self._stopped: list[str] = []

    def __len__(self) -> int:
        """Return the number of unfinished requests of callers."""
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def add(self, submitted: SubmittedRequest) -> None:
        """Track a request, and the children that it has got since the last call."""
        if (state := self._requests.get(submitted.request_id)) is None:
            state = self._requests[submitted.request_id] = _RequestState(submitted, self._tokenizer)
        for child in submitted.children[len(state.completions) :]:
            self._completions[child.request_id] = (state, state.add(child))

    def is_open(self, submitted: SubmittedRequest) -> bool:
        """Whether the request may get more children: it is unfinished and not closed."""
        state = self._requests.get(submitted.request_id)
        return state is not None and state.submitted is submitted and not state.is_closed

    def close(self, request_ids: Iterable[str]) -> list[str]:
        """End requests with the children that they have; return the core's ids of those that are unfinished."""
        request_ids = list(request_ids)
        for name in request_ids:
            if (state := self._requests.get(name)) is not None:
                state.close()
                if state.is_finished:
                    self._changed[name] = state
        return self.core_ids(request_ids)

    def clear(self) -> None:
        """Forget every request."""
        for states in (self._requests, self._completions, self._changed, self._stopped):
            states.clear()

    def core_ids(self, request_ids: Iterable[str]) -> list[str]:
        """Return the core's ids of unfinished completions of these requests."""
        states = [self._requests[name] for name in request_ids if name in self._requests]
        core_ids = [child.request_id for state in states for child in state.submitted.children]
        return [core_id for core_id in core_ids if core_id in self._completions]

    def update(self, core_outputs: Iterable[EngineCoreOutput]) -> None:
        """Apply the outputs of a step or an abort."""
        now = self._clock()
        for output in core_outputs:
            known = self._completions.get(output.request_id)
            if known is None:
                continue
            state, completion = known
            state.update(completion, output, now)
            if completion.finish_reason is not None:
                del self._completions[output.request_id]
            elif completion.text is not None and completion.text.stop_string is not None:
                self._stopped.append(output.request_id)
            if state.is_due:
                self._changed[state.request_id] = state

    def take_stopped(self) -> list[str]:
        """Return the core's ids of requests whose text reached a stop string; the core must abort them."""
        stopped, self._stopped = self._stopped, []
        return stopped

    def take_outputs(self) -> list[RequestOutput]:
        """Return the outputs for callers since the last call, in order."""
        outputs = []
        for state in self._changed.values():
            if (output := state.output()) is not None:
                outputs.append(output)
            if state.is_finished:
                del self._requests[state.request_id]
        self._changed = {}
        return outputs


class _RequestState:
    """A request of a caller with its completions."""

    def __init__(self, submitted: SubmittedRequest, tokenizer: Tokenizer | None) -> None:
        self.request_id = submitted.request_id
        self.completions: list[_CompletionState] = []
        self.submitted = submitted
        self._fresh: dict[int, _CompletionState] = {}
        """Completions that were updated since the last output, by index."""
        self.is_closed = False
        """Whether it ends with fewer completions than it was to have."""
        self._tokenizer = tokenizer
        self._num_unfinished = submitted.params.num_completions
        self._ranks = submitted.params.num_completions > submitted.params.n
        self._waits_for_end = self._ranks or submitted.params.output_kind is RequestOutputKind.FINAL_ONLY
        self._waits_for_all = submitted.params.output_kind is not RequestOutputKind.DELTA
        self._metrics = RequestMetrics(arrival_time=submitted.arrival_time)
        self._num_cached_tokens = 0
        self._cached_by_source: dict[str, int] = {}
        self._kv_transfer_params: dict[str, Any] | None = None
        self._error: str | None = None
        self._embedding: list[float] | None = None
        asks = submitted.params.prompt_logprobs is not None
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = [None] if asks else None

    @property
    def is_finished(self) -> bool:
        return self._num_unfinished == 0

    @property
    def is_due(self) -> bool:
        """Whether an output is due now, by `output_kind`."""
        if self._waits_for_all and len(self.completions) < self.submitted.params.num_completions:
            return self._num_unfinished == 0
        return self._num_unfinished == 0 or not self._waits_for_end

    def add(self, child: Request) -> _CompletionState:
        completion = _CompletionState(len(self.completions), child, self._tokenizer)
        self.completions.append(completion)
        return completion

    def close(self) -> None:
        """Take no more children."""
        if not self.is_closed:
            missing = self.submitted.params.num_completions - len(self.completions)
            self.is_closed = True
            self._num_unfinished -= missing

    def update(self, completion: _CompletionState, output: EngineCoreOutput, now: float) -> None:
        if completion.index == 0:
            self._num_cached_tokens = output.num_cached_tokens
            self._cached_by_source = output.cached_tokens_by_source
            self._kv_transfer_params = output.kv_transfer_params
        self._embedding = output.embedding or self._embedding
        if output.prompt_logprobs is not None and self._prompt_logprobs is not None:
            self._prompt_logprobs += [_logprobs_by_id(p, self._tokenizer) for p in output.prompt_logprobs]
        num_new_tokens = completion.update(output)
        self._fresh[completion.index] = completion
        if num_new_tokens and not self._metrics.num_generation_tokens:
            self._metrics.first_token_latency = now - self._metrics.arrival_time
        self._metrics.num_generation_tokens += num_new_tokens
        if output.finish_reason is not None:
            self._num_unfinished -= 1
            self._error = self._error or output.error
            self._metrics.num_preemptions += output.num_preemptions
            if self.is_finished:
                self._metrics.finished_time = now
            for name, when in output.events or ():
                if name == "FINISHED":
                    self._metrics.last_token_ts = max(self._metrics.last_token_ts, when)
                elif name in STARTS:  # SCHEDULED comes again after a preemption: the first one counts
                    earliest = min(getattr(self._metrics, STARTS[name]) or when, when)
                    setattr(self._metrics, STARTS[name], earliest)

    def output(self) -> RequestOutput | None:
        """Return the output that is due now, if any."""
        if not self.is_due:
            return None
        news = [self._fresh[index] for index in sorted(self._fresh) if self._fresh[index].has_news]
        self._fresh.clear()
        if not news and not self.is_closed:
            return None
        if self._ranks:
            outputs = self._best()
        elif self.submitted.params.output_kind is RequestOutputKind.DELTA:
            outputs = [completion.delta() for completion in news]
        else:
            outputs = [completion.snapshot() for completion in self.completions]
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.submitted.prompt,
            prompt_token_ids=self.submitted.prompt_token_ids,
            prompt_logprobs=self._take_prompt_logprobs(),
            outputs=outputs,
            finished=self.is_finished,
            metrics=self._metrics,
            num_cached_tokens=self._num_cached_tokens,
            prompt_tokens_cached_by_source=dict(self._cached_by_source),
            kv_transfer_params=self._kv_transfer_params,
            embedding=self._embedding,
            lora_request=self.submitted.lora_request,
            error=self._error,
        )

    def _best(self) -> list[CompletionOutput]:
        """Return the n completions with the highest log-probability, in that order; ties by index (best_of)."""
        params = self.submitted.params
        outputs = [completion.snapshot() for completion in self.completions]
        best = nlargest(params.n, outputs, key=lambda output: output.cumulative_logprob or 0.0)
        for index, output in enumerate(best):
            output.index = index
            if params.logprobs is None:
                output.logprobs = None
        return best

    def _take_prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """Return prompt log-probabilities once all are known; a stream of deltas gets them with the first token."""
        asking = self.completions[0]
        if not asking.token_ids and asking.finish_reason is None:
            return None
        prompt_logprobs = self._prompt_logprobs
        if self.submitted.params.output_kind is RequestOutputKind.DELTA:
            self._prompt_logprobs = None
        return prompt_logprobs


class _CompletionState:
    """A completion as it grows."""

    def __init__(self, index: int, request: Request, tokenizer: Tokenizer | None) -> None:
        params = request.sampling_params
        self.index = index
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self._stop_reason: int | str | None = None
        self._tokenizer = tokenizer
        self.text: OutputText | None = None
        if tokenizer is not None and params.detokenize:
            skip = params.skip_special_tokens
            detokenizer = Detokenizer(tokenizer, request.prompt_token_ids, skip_special_tokens=skip)
            self.text = OutputText(detokenizer, params)
        self._shows_stop = params.include_stop_str_in_output
        self._logprobs: list[dict[int, Logprob]] | None = None if params.logprobs is None else []
        self._cumulative_logprob = 0.0
        self._num_seen = 0
        self._end_is_seen = False

    @property
    def has_news(self) -> bool:
        """Whether there is output that neither `delta` nor `snapshot` has returned."""
        has_ended = self.finish_reason is not None and not self._end_is_seen
        return has_ended or len(self.token_ids) > self._num_seen

    def update(self, output: EngineCoreOutput) -> int:
        """Add the output of a step; return the number of tokens that count."""
        token_ids = output.new_token_ids
        if self.text is not None:
            hides_last = output.finish_reason == "stop" and not self._shows_stop
            num_pushed = self.text.push(token_ids[:-1] if hides_last else token_ids)
            if self.text.stop_string is not None:
                token_ids = token_ids[:num_pushed]  # drop tokens after a stop string
        self.token_ids += token_ids
        if output.logprobs is not None and self._logprobs is not None:
            for position in output.logprobs[: len(token_ids)]:
                self._logprobs.append(_logprobs_by_id(position, self._tokenizer))
                self._cumulative_logprob += position.logprobs[0]
        if output.finish_reason is not None:
            self.finish_reason, self._stop_reason = output.finish_reason, output.stop_reason
            if self.text is not None:
                self.text.close()
                if self.text.stop_string is not None:  # the core reports an abort
                    self.finish_reason, self._stop_reason = "stop", self.text.stop_string
        return len(token_ids)

    def snapshot(self) -> CompletionOutput:
        """Return all output so far."""
        return self._completion(self.text.text if self.text is not None else "", since=0)

    def delta(self) -> CompletionOutput:
        """Return the output since the last delta."""
        return self._completion(self.text.take() if self.text is not None else "", since=self._num_seen)

    def _completion(self, text: str, since: int) -> CompletionOutput:
        """Return the output from token `since` on, and mark all output as returned."""
        self._num_seen, self._end_is_seen = len(self.token_ids), self.finish_reason is not None
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=self.token_ids[since:],
            cumulative_logprob=None if self._logprobs is None else self._cumulative_logprob,
            logprobs=None if self._logprobs is None else self._logprobs[since:],
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
        )


def _logprobs_by_id(position: TokenLogprobs, tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """Return log-probabilities by token id: the token itself, then the most likely ones by rank."""
    ranks = [position.rank, *range(1, len(position.token_ids))]
    by_id: dict[int, Logprob] = {}
    for token_id, logprob, rank in zip(position.token_ids, position.logprobs, ranks, strict=True):
        if token_id not in by_id:
            text = tokenizer.token_text(token_id) if tokenizer is not None else None
            by_id[token_id] = Logprob(logprob, rank, text)
    return by_id
