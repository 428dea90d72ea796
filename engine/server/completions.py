"""POST /v1/completions: one or several prompts, n completions each.

Source: vLLM entrypoints/openai/completion/serving.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from engine.frontend.turns import let_others_run
from engine.outputs import CompletionOutput, RequestOutput
from engine.sampling_params import SamplingParams
from engine.server import logprobs
from engine.server.errors import ApiError
from engine.server.params import check, completion_prompts, sampling_params
from engine.server.protocol import CompletionRequest, GenerationRequest
from engine.server.service import Answer, Service, UsageChunks, engine_id, merged, raise_if_failed

DEFAULT_MAX_TOKENS = 16


@dataclass
class Completion:
    """A checked request, ready to run."""

    service: Service
    request: CompletionRequest
    answer: Answer
    prompts: list[list[int]]
    texts: list[str]
    """The prompts as text, for `echo`."""
    params: SamplingParams
    _offsets: dict[int, int] = field(default_factory=dict)
    """Characters of each choice that its logprobs have covered."""

    @property
    def num_choices(self) -> int:
        return self.params.n * len(self.prompts)

    async def full(self) -> dict[str, Any]:
        """Run to the end and return the answer."""
        last: dict[int, RequestOutput] = {}
        async with aclosing(self.service.run(self.num_choices, self._outputs())) as outputs:
            async for number, output in outputs:
                raise_if_failed(output)
                self.answer.count(output, number, self.params.n)
                last[number] = output
        choices: list[dict[str, Any]] = []
        for number in range(len(self.prompts)):
            output = last[number]
            of_prompt = logprobs.prompt_logprobs(output.prompt_logprobs)
            for completion in output.outputs:
                choice = self._choice(number, completion, output, is_first=True)
                choices.append({**choice, "prompt_logprobs": of_prompt, "routed_experts": None})
                await let_others_run(len(choices) - 1)
        return self.answer.whole(choices, shows_cached_tokens=self.service.shows_cached_tokens)

    async def stream(self) -> AsyncGenerator[dict[str, Any], None]:
        """Run and yield chunks."""
        usage = UsageChunks.of(self.request.stream_options)
        begun: set[int] = set()
        async with aclosing(self.service.run(self.num_choices, self._outputs())) as outputs:
            async for number, output in outputs:
                raise_if_failed(output)
                self.answer.count(output, number, self.params.n)
                for position, completion in enumerate(output.outputs):
                    await let_others_run(position)
                    index = number * self.params.n + completion.index
                    choice = self._choice(number, completion, output, is_first=index not in begun)
                    begun.add(index)
                    more = {"usage": self.answer.usage_of(index, number)} if usage.always else {}
                    is_last = completion.finish_reason is not None and not usage.at_end
                    yield self.answer.body([choice], **more, **self.answer.ending(is_last))
        if usage.at_end:
            shows = self.service.shows_cached_tokens
            total = self.answer.usage(shows_cached_tokens=shows)
            yield self.answer.body([], usage=total, **self.answer.ending(True))

    async def _outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        prompts: list[Any] = [{"prompt_token_ids": ids} for ids in self.prompts]
        for prompt in prompts:
            if self.request.cache_salt is not None:
                prompt["cache_salt"] = self.request.cache_salt
        outputs = [self._run(number, prompt) for number, prompt in enumerate(prompts)]
        async with aclosing(merged(outputs, self.service.models.submitting)) as pairs:
            async for pair in pairs:
                yield pair

    async def _run(self, number: int, prompt: Any) -> AsyncGenerator[RequestOutput, None]:
        """Submit a prompt. Its adapter is found here: one that was unloaded since `prepare` must not load again."""
        generated = self.service.llm.generate(
            prompt,
            self.params,
            engine_id(self.answer.id, number),
            lora_request=self.service.models.find(self.answer.model)[1],
            priority=self.service.priority(self.request),
            trace_headers=self.answer.trace_headers,
        )
        async with aclosing(generated) as outputs:
            async for output in outputs:
                yield output

    def _choice(
        self, number: int, completion: CompletionOutput, output: RequestOutput, *, is_first: bool
    ) -> dict[str, Any]:
        request, index = self.request, number * self.params.n + completion.index
        echoes = bool(request.echo) and is_first
        is_prompt_only = bool(request.echo) and request.max_tokens == 0
        new_ids = [] if is_prompt_only else completion.token_ids
        new_text = "" if is_prompt_only else completion.text
        choice: dict[str, Any] = {
            "index": index,
            "text": self.texts[number] + new_text if echoes else new_text,
            "logprobs": None,
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if request.logprobs is not None:
            prompt_ids = self.prompts[number] if echoes else []
            of_prompt = (output.prompt_logprobs or []) if echoes else []
            of_output = [] if is_prompt_only else completion.logprobs or []
            choice["logprobs"] = token_logprobs = logprobs.completion_logprobs(
                [*prompt_ids, *new_ids],
                [*of_prompt, *of_output],
                request.logprobs,
                self.service.tokenizer,
                first_offset=self._offsets.get(index, 0),
                as_ids=bool(request.return_tokens_as_token_ids),
            )
            if token_logprobs["tokens"]:
                self._offsets[index] = token_logprobs["text_offset"][-1] + len(token_logprobs["tokens"][-1])
        wants = bool(request.return_token_ids)
        choice["token_ids"] = new_ids if wants else None
        choice["prompt_token_ids"] = self.prompts[number] if wants and is_first else None
        return choice


def prepare(service: Service, request: CompletionRequest, headers: Mapping[str, str]) -> Completion:
    """Check a request and tokenise its prompts. Raises ApiError, or ValueError for parameters out of range."""
    name, _ = service.models.find(request.model)
    check(request)
    tokenizer = service.tokenizer
    ids, texts = [], []
    prompts = completion_prompts(request)
    service.check_completions(len(prompts), max(request.n, 1))
    for prompt in prompts:
        if isinstance(prompt, str):
            if request.truncate_prompt_tokens is None:
                service.processor.check_characters(prompt)
            prompt_ids = tokenizer.encode(prompt, add_special_tokens=request.add_special_tokens)
        else:
            prompt_ids = prompt
        ids.append(truncated(prompt_ids, request, service.max_model_len))
        texts.append(prompt if isinstance(prompt, str) else tokenizer.decode(ids[-1]) if request.echo else "")
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    if max_tokens == 0 and not request.echo:
        raise ApiError(400, "max_tokens must be at least 1, got 0 (0 is for echo)", param="max_tokens")
    limit = service.max_model_len
    if max_tokens > limit:
        raise ApiError(
            400, f"max_tokens must be at most max_model_len ({limit}), got {max_tokens}", param="max_tokens"
        )
    if 0 < (room := limit - max(map(len, ids))):
        max_tokens = min(max_tokens, room)  # as vLLM; a chat completion is refused instead
    of_prompt = request.prompt_logprobs
    if request.echo and of_prompt is None:
        of_prompt = request.logprobs
    params = sampling_params(
        request,
        max_tokens=1 if max_tokens == 0 else max_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=of_prompt,
    )
    answer = service.answer("text_completion", name, "cmpl", request, headers)
    return Completion(service, request, answer, ids, texts, params)


def truncated(token_ids: list[int], request: GenerationRequest, max_model_len: int) -> list[int]:
    """Return as many tokens of a prompt as `truncate_prompt_tokens` says: the last ones, or the first.

    -1: as many as the model takes, None: all.
    """
    keep = request.truncate_prompt_tokens
    if keep is None:
        return token_ids
    if keep > max_model_len:
        message = f"truncate_prompt_tokens must be at most max_model_len ({max_model_len}), got {keep}"
        raise ApiError(400, message, param="truncate_prompt_tokens")
    keep = max_model_len - 1 if keep == -1 else keep
    if keep >= len(token_ids):
        return token_ids
    return token_ids[:keep] if request.truncation_side == "right" else token_ids[len(token_ids) - keep :]
