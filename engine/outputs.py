"""Outputs of requests. Field names are vLLM's (vllm/outputs.py)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from prep_common.text import counted

if TYPE_CHECKING:
    from engine.lora.request import LoRARequest


@dataclass(slots=True)
class Logprob:
    """One token's log-probability at one position, from the model's raw logits."""

    logprob: float
    rank: int | None = None
    """Rank in the vocabulary; 1 is the most likely token."""
    decoded_token: str | None = None
    """The token's text on its own; None without a tokenizer."""


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt."""

    index: int
    """Number of the completion, 0 to n - 1."""
    text: str
    token_ids: list[int]
    """All sampled tokens, including the one that ended the output."""
    cumulative_logprob: float | None = None
    """Sum over the sampled tokens; None without `logprobs`."""
    logprobs: list[dict[int, Logprob]] | None = None
    """For each sampled token: itself, then the most likely tokens, by token id."""
    finish_reason: str | None = None
    """stop, length, abort or error; None while the completion grows."""
    stop_reason: int | str | None = None
    """Stop string or stop token id that ended the output; None for end-of-sequence."""
    tool_calls: list[dict[str, Any]] | None = None
    """Tool calls of `LLM.chat` in OpenAI's format, removed from `text`; None without tools."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def with_delta(self, later: CompletionOutput) -> CompletionOutput:
        """Return this delta and the next one merged."""
        return replace(
            later,
            text=self.text + later.text,
            token_ids=self.token_ids + later.token_ids,
            logprobs=None if later.logprobs is None else (self.logprobs or []) + later.logprobs,
        )

    def __repr__(self) -> str:
        end = f", finish_reason={self.finish_reason!r}" if self.finished else ""
        reason = f", stop_reason={self.stop_reason!r}" if self.stop_reason is not None else ""
        return f"CompletionOutput({self.index}: {self.text!r}, {counted(len(self.token_ids), 'token')}{end}{reason})"


@dataclass(slots=True)
class RequestMetrics:
    """Times of a request's events in monotonic seconds; 0.0 for events that have not happened.

        arrival   queued    scheduled          first token            last token   finished
        |---------|---------|------------------|----------------------|------------|
                   queued      prefill            decode
                            |------------- inference -----------------|
        |----------------- first_token_latency -> (in the frontend)
        |------------------------------- e2e_latency ------------------------------|

    Intervals include time spent preempted. With n > 1 they run from the earliest start to the latest end of the
    completions. Source of the definitions: vLLM v1/metrics/stats.py.
    """

    arrival_time: float = 0.0
    """Time at which the frontend received the request."""
    queued_ts: float = 0.0
    """Time at which the scheduler queued it."""
    scheduled_ts: float = 0.0
    """Time of its first scheduled step."""
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    finished_time: float = 0.0
    """Time at which the frontend returned the last output."""
    first_token_latency: float = 0.0
    """Seconds from arrival until the frontend had the first token."""
    num_generation_tokens: int = 0
    num_preemptions: int = 0

    @property
    def queued_time(self) -> float:
        return self.scheduled_ts - self.queued_ts

    @property
    def prefill_time(self) -> float:
        return self.first_token_ts - self.scheduled_ts

    @property
    def decode_time(self) -> float:
        return self.last_token_ts - self.first_token_ts

    @property
    def inference_time(self) -> float:
        return self.last_token_ts - self.scheduled_ts

    @property
    def e2e_latency(self) -> float:
        return self.finished_time - self.arrival_time

    @property
    def time_per_output_token(self) -> float:
        """Mean seconds between tokens after the first."""
        return self.decode_time / max(1, self.num_generation_tokens - 1)


@dataclass(slots=True)
class RequestOutput:
    """A request and its completions."""

    request_id: str
    prompt: str | None
    """None if the caller gave token ids."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    """For each prompt token; None for the first, which nothing precedes."""
    outputs: list[CompletionOutput]
    """Completions in order of `index`; a DELTA holds only those with new output."""
    finished: bool
    """Whether all n completions have ended."""
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache, including those loaded from another engine."""
    prompt_tokens_cached_by_source: dict[str, int] = field(default_factory=dict)
    """Cached tokens by source: device, host, disk, p2p or external_unspecified. Zeros are left out."""
    kv_transfer_params: dict[str, Any] | None = None
    """Address of this request's KV for another engine; pass it there in `SamplingParams.extra_args`."""
    embedding: list[float] | None = None
    """Embedding, for `LLM.embed`."""
    lora_request: LoRARequest | None = None
    """Adapter used."""
    error: str | None = None
    """Error message, for finish_reason "error"."""

    def with_delta(self, later: RequestOutput) -> RequestOutput:
        """Return this delta and the next one merged, for a reader that missed this one."""
        by_index = {completion.index: completion for completion in self.outputs}
        for new in later.outputs:
            old = by_index.get(new.index)
            by_index[new.index] = new if old is None else old.with_delta(new)
        outputs = [by_index[index] for index in sorted(by_index)]
        return replace(later, prompt_logprobs=self.prompt_logprobs or later.prompt_logprobs, outputs=outputs)

    def __repr__(self) -> str:
        prompt = counted(len(self.prompt_token_ids), "token") if self.prompt is None else repr(self.prompt)
        state = "finished" if self.finished else "running"
        return f"RequestOutput({self.request_id}, {state}, prompt={prompt}, outputs={self.outputs})"


@dataclass(slots=True)
class EmbeddingRequestOutput:
    """A prompt and its embedding."""

    request_id: str
    prompt_token_ids: list[int]
    embedding: list[float]
    """Hidden state of the last token, of length 1."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
