"""Offline inference: prompts in, completions out, in the caller's thread.

Names are vLLM's (vllm/entrypoints/llm.py).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any, Self, cast

from tqdm import tqdm

from engine.config import ConfigError, EngineArgs
from engine.core.kv_events import KVEventBatch
from engine.engine_core import EngineCore
from engine.frontend.beam_search import BeamSearchOutput, BeamSearchParams, beam_search
from engine.frontend.chat_template import ChatMessage
from engine.frontend.input_processor import InvalidRequestError, Prompt, checked_params
from engine.frontend.interrupt import interrupt_afterwards
from engine.frontend.llm_engine import LLMEngine
from engine.frontend.parallel_sampling import SubmittedRequest
from engine.frontend.tokenizer import Tokenizer
from engine.frontend.tool_choice import ToolChoice, ToolPlan
from engine.lora.request import LoRARequest
from engine.outputs import EmbeddingRequestOutput, RequestOutput
from engine.sampling_params import RequestOutputKind, SamplingParams, list_of
from prep_common.text import counted, shown

_QUIET_S = 2.0
"""Calls that take longer show a progress bar by default."""


class LLM:
    """A loaded model.

        with LLM("shop", max_num_seqs=8) as llm:
            for output in llm.generate(["Hello", "Good morning"], SamplingParams(max_tokens=20)):
                print(output.outputs[0].text)

    Keyword arguments are those of `EngineArgs`. Any thread may call it: threads take turns at the engine, step by
    step, and their requests run in the same batches. For many clients in `async` code there is AsyncLLM.
    """

    def __init__(self, model: str = "shop", **engine_args: Any) -> None:
        self.llm_engine = LLMEngine.from_args(EngineArgs.create(model=model, **engine_args))
        self._request_ids = map(str, count())
        self._inboxes: dict[str, deque[RequestOutput]] = {}
        """Outputs by request id. The requests of a call share an inbox. Several calls may be open: those of other
        threads, or a stream with a `generate` inside its loop."""
        self._turn = _Turn()
        """Held by the one thread that uses the engine."""
        self._is_open = True

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts and return the outputs in their order.

        A prompt is text, a list of token ids, or a dict (`PromptDict`). Give one `sampling_params` and
        `lora_request` for all prompts or a list with one for each; an adapter of None is the base model. A wrong
        request raises before any has started. `use_tqdm` shows or hides the progress bar; None shows it after two
        seconds.
        """
        prompts = _as_list(prompts)
        sampling_params = SamplingParams() if sampling_params is None else sampling_params
        all_params = _for_each(sampling_params, len(prompts), "sampling_params")
        priorities = _for_each(0 if priority is None else priority, len(prompts), "priorities")
        loras = self._loras_for_each(lora_request, len(prompts))
        requests = [
            self._process(prompt, params, RequestOutputKind.FINAL_ONLY, lora, priority=number)
            for prompt, params, lora, number in zip(prompts, all_params, loras, priorities, strict=True)
        ]
        return self._complete(requests, use_tqdm)

    def chat(
        self,
        messages: Sequence[ChatMessage] | Sequence[Sequence[ChatMessage]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: ToolChoice = "auto",
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, rendered with the model's chat template.

        tools: functions with JSON schemas, as in OpenAI's API; calls come back in `CompletionOutput.tool_calls`.
        tool_choice: "auto", "none", "required", or one function by name (`engine/frontend/tool_choice.py`).
        """
        conversations = _conversations(messages)
        if not isinstance(chat_template_kwargs or {}, dict) or not all(
            map(_is_text, chat_template_kwargs or ())
        ):
            raise InvalidRequestError(
                f"chat_template_kwargs must be a dict of variables by name, got {shown(chat_template_kwargs)}"
            )
        plan = ToolPlan.of(tools, tool_choice)
        options = {
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": plan.tools,
            "opening": plan.opening,
            **(chat_template_kwargs or {}),
        }
        processor = self.llm_engine.input_processor
        prompts = [processor.chat_prompt(conversation, **options) for conversation in conversations]
        sampling_params = SamplingParams() if sampling_params is None else sampling_params
        given = _for_each(sampling_params, len(prompts), "sampling_params")
        all_params = [plan.constrain(checked_params(params)) for params in given]
        outputs = self.generate(prompts, all_params, use_tqdm=use_tqdm, lora_request=lora_request)
        for output in outputs:
            for completion in output.outputs:
                plan.read(completion)
        return outputs

    def embed(
        self, prompts: Prompt | Sequence[Prompt], *, use_tqdm: bool | None = None
    ) -> list[EmbeddingRequestOutput]:
        """Return a vector of length 1 per prompt: the hidden state of its last token.

        Prefixes of one text cost little: each hits the blocks of the shorter one in the prefix cache.
        """
        self._check_open()
        processor = self.llm_engine.input_processor
        requests = [
            processor.process_embedding(next(self._request_ids), prompt) for prompt in _as_list(prompts)
        ]
        outputs: list[EmbeddingRequestOutput] = []
        for out in self._complete(requests, use_tqdm):
            if out.embedding is None:
                raise RuntimeError(out.error or "the engine ended before this prompt was computed")
            common = (out.request_id, out.prompt_token_ids, out.embedding, out.num_cached_tokens)
            outputs.append(EmbeddingRequestOutput(*common))
        return outputs

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams
    ) -> list[BeamSearchOutput]:
        """Return the `beam_width` most likely continuations of each prompt, best first, and the cost of the search.

        Deterministic. `max_logprobs` must allow 2 * beam_width log-probabilities.
        """
        if not isinstance(params, BeamSearchParams):
            raise InvalidRequestError(f"params must be BeamSearchParams, got {shown(params)}")
        config = self.llm_engine.engine_core.config
        one_token = SamplingParams(max_tokens=1, logprobs=2 * params.beam_width)
        requests = [
            self._process(prompt, one_token, RequestOutputKind.FINAL_ONLY) for prompt in _as_list(prompts)
        ]
        most = config.scheduler.max_model_len
        for request in requests:
            num_prompt = len(request.prompt_token_ids)
            if (longest := num_prompt + params.max_tokens) > most:
                raise InvalidRequestError(
                    f"a prompt of {counted(num_prompt, 'token')} and max_tokens={params.max_tokens} make "
                    f"{longest}, more than max_model_len={most}; lower max_tokens"
                )
        return [self._beam_search(request, params) for request in requests]

    def _beam_search(self, request: SubmittedRequest, params: BeamSearchParams) -> BeamSearchOutput:
        engine = self.llm_engine
        output = beam_search(
            request.prompt_token_ids,
            params,
            lambda prompts, one_token: self.generate(prompts, one_token, use_tqdm=False),
            eos_token_ids=engine.input_processor.eos_token_ids,
            block_size=engine.engine_core.config.cache.block_size,
        )
        if engine.tokenizer is not None:
            for beam in output.sequences:
                new_tokens = beam.tokens[len(request.prompt_token_ids) :]
                beam.text = engine.tokenizer.decode(new_tokens, skip_special_tokens=True)
        return output

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        lora_request: LoRARequest | None = None,
    ) -> Iterator[RequestOutput]:
        """Complete one prompt and yield the new output of every step. Leaving the loop aborts the request.

        for delta in llm.stream("Once"):
            print(delta.outputs[0].text, end="", flush=True)
        """
        params = SamplingParams() if sampling_params is None else sampling_params
        [lora] = self._loras_for_each(lora_request, 1)
        return self._stream(self._process(prompt, params, RequestOutputKind.DELTA, lora))

    def load_lora_adapter(self, lora_name: str, lora_path: str, *, load_inplace: bool = False) -> LoRARequest:
        """Load an adapter while requests run; return the `lora_request` to generate with.

        lora_path: a folder in PEFT's layout, or the name of a shipped adapter (`prep zoo list`). With `load_inplace`
        the new weights replace those of a loaded adapter; without, its name must be new.
        """
        with self._turn:
            return self.llm_engine.load_lora_adapter(lora_name, lora_path, load_inplace=load_inplace)

    def unload_lora_adapter(self, lora_name: str) -> None:
        """Unload an adapter. Unfinished requests still finish with it."""
        with self._turn:
            self.llm_engine.remove_lora(lora_name)

    def list_lora_adapters(self) -> list[LoRARequest]:
        """Return the loaded adapters, oldest first."""
        return self.llm_engine.list_loras()

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer. Raises InvalidRequestError with `skip_tokenizer_init`."""
        if self.llm_engine.tokenizer is None:
            raise InvalidRequestError("there is no tokenizer: this engine has skip_tokenizer_init=True")
        return self.llm_engine.tokenizer

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache. Return False, and change nothing, while requests hold blocks."""
        with self._turn:
            return self.llm_engine.reset_prefix_cache()

    def take_kv_events(self) -> list[KVEventBatch]:
        """Return the changes of the prefix cache since the last call, for a router (`engine/core/kv_events.py`).

        Needs `kv_events_config={"publisher": "memory"}`.
        """
        core = self.llm_engine.engine_core
        if not isinstance(core, EngineCore):
            remedy = "with data_parallel_size above 1 there is no common feed"
            raise ConfigError(f"each engine has its own KV events; {remedy}")
        with self._turn:
            return core.take_kv_events()

    def shutdown(self) -> None:
        """Free the model and its cache. Calling it again does nothing."""
        with self._turn:
            if self._is_open:
                self._is_open = False
                self.llm_engine.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()

    def _process(
        self,
        prompt: Prompt,
        params: SamplingParams,
        kind: RequestOutputKind,
        lora: LoRARequest | None = None,
        *,
        priority: int = 0,
    ) -> SubmittedRequest:
        self._check_open()
        process = self.llm_engine.input_processor.process
        params = replace(checked_params(params), output_kind=kind)
        return process(next(self._request_ids), prompt, params, lora_request=lora, priority=priority)

    def _loras_for_each(
        self, loras: LoRARequest | Sequence[LoRARequest | None] | None, num_prompts: int
    ) -> list[LoRARequest | None]:
        """Return one adapter for each prompt, after loading the new ones."""
        adapters = (
            [loras] * num_prompts
            if isinstance(loras, str)
            else _for_each(loras, num_prompts, "lora_requests")
        )
        for lora in adapters:
            if lora is not None and not isinstance(lora, LoRARequest):
                raise InvalidRequestError(f"lora_request must be a LoRARequest, got {shown(lora)}")
        for lora in dict.fromkeys(adapters):
            with self._turn:
                if not (lora is None or self.llm_engine.is_loaded(lora)):
                    self.llm_engine.add_lora(lora)
        return adapters

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError("this LLM was shut down; create a new one")

    def _complete(self, requests: list[SubmittedRequest], use_tqdm: bool | None) -> list[RequestOutput]:
        final: dict[str, RequestOutput] = {}
        with (
            self._submitted(requests) as inbox,
            _Progress(len(requests), use_tqdm) as progress,
            interrupt_afterwards() as may_end_here,
        ):
            while len(final) < len(requests):
                self._step_for(inbox)
                while inbox:
                    output = inbox.popleft()
                    final[output.request_id] = output
                    progress.add(output)
                may_end_here()
            with self._turn:  # so that the KV connector gets the blocks of requests that have just finished
                if self.llm_engine.engine_core.has_transfers:
                    self._step()
        return [final[request.request_id] for request in requests]

    def _stream(self, request: SubmittedRequest) -> Iterator[RequestOutput]:
        finished = False
        with self._submitted([request]) as inbox:
            while not finished:
                with interrupt_afterwards():
                    self._step_for(inbox)
                while inbox:
                    output = inbox.popleft()
                    finished = output.finished
                    yield output

    def _step_for(self, inbox: deque[RequestOutput]) -> None:
        """Run a step unless another call's step has filled the inbox.

        Call it inside `interrupt_afterwards`: outputs taken from the engine must reach their inboxes.
        """
        with self._turn:
            if inbox:
                return
            if not self._step() and not self.llm_engine.has_unfinished():
                raise RuntimeError("these requests are gone: Ctrl-C was pressed twice in another call")

    def _step(self) -> list[RequestOutput]:
        outputs = self.llm_engine.step()
        for output in outputs:
            self._inboxes[output.request_id].append(output)
        return outputs

    @contextmanager
    def _submitted(self, requests: list[SubmittedRequest]) -> Iterator[deque[RequestOutput]]:
        """Add requests to the engine; when the block ends, abort those that are unfinished."""
        inbox: deque[RequestOutput] = deque()
        try:
            with interrupt_afterwards(), self._turn:
                for request in requests:
                    self.llm_engine.add(request)
                    self._inboxes[request.request_id] = inbox
            yield inbox
        finally:
            with interrupt_afterwards(), self._turn:
                self.llm_engine.abort(request.request_id for request in requests)
                for request in requests:
                    self._inboxes.pop(request.request_id, None)


class _Turn:
    """A fair lock: a thread that releases and acquires it again lets a waiting thread go first.

    Reentrant, because the garbage collector may close a stream at any moment, also in the middle of a step.
    """

    def __init__(self) -> None:
        self._gate = threading.RLock()
        """Held by the next thread in line while it waits."""
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._owner != me:
            with self._gate:
                self._lock.acquire()
            self._owner = me
        self._depth += 1

    def __exit__(self, *_error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()


class _Progress(tqdm):  # type: ignore[type-arg]
    """A progress bar over finished requests with token rates, as in vLLM."""

    def __init__(self, total: int, use_tqdm: bool | None) -> None:
        super().__init__(
            total=total,
            desc="Processed prompts",
            dynamic_ncols=True,
            disable=use_tqdm is False,
            delay=_QUIET_S if use_tqdm is None else 0,
        )
        self._start = time.monotonic()
        self._num_input = self._num_output = 0

    def add(self, output: RequestOutput) -> None:
        self._num_input += len(output.prompt_token_ids)
        self._num_output += sum(len(completion.token_ids) for completion in output.outputs)
        seconds = max(time.monotonic() - self._start, 1e-9)
        self.set_postfix_str(
            f"est. speed input: {self._num_input / seconds:.2f} toks/s, "
            f"output: {self._num_output / seconds:.2f} toks/s",
            refresh=False,
        )
        self.update()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return a list of prompts; a list of integers is one prompt of token ids."""
    if isinstance(prompts, (str, bytes, dict)):
        return [cast(Prompt, prompts)]
    if (several := list_of(prompts)) is None:
        raise InvalidRequestError(
            f"prompts must be text, a list of token ids, a prompt dict or a list of them, got {shown(prompts)}"
        )
    is_one = bool(several) and isinstance(several[0], int)
    return [cast(Prompt, several)] if is_one else several


def _conversations(messages: Any) -> list[Any]:
    """Return a list of conversations; a list of messages is one."""
    several = None if isinstance(messages, (str, bytes, dict)) else list_of(messages)
    if several is None:
        raise InvalidRequestError(
            f'messages must be a list such as [{{"role": "user", "content": "Hello"}}], got {shown(messages)}'
        )
    return [several] if not several or isinstance(several[0], dict) else several


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _for_each(given: Any, num_prompts: int, name: str) -> list[Any]:
    """Return one value for each prompt, from a list of them or from one for all."""
    several = list_of(given) if isinstance(given, Collection) else None
    if several is None:
        return [given] * num_prompts
    if len(several) != num_prompts:
        raise InvalidRequestError(
            f"{counted(num_prompts, 'prompt')}, but {len(several)} {name}; give one for all or one for each"
        )
    return several
