"""POST /v1/chat/completions: messages and tools in, messages and tool calls out.

Source: vLLM entrypoints/openai/chat_completion/serving.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from engine.frontend.tool_choice import ToolCallStream, ToolPlan
from engine.frontend.turns import let_others_run
from engine.outputs import CompletionOutput, RequestOutput
from engine.sampling_params import SamplingParams
from engine.server import logprobs
from engine.server.completions import truncated
from engine.server.errors import ApiError
from engine.server.params import check, check_room, sampling_params
from engine.server.protocol import ChatCompletionRequest, ChatTemplateFields
from engine.server.service import Answer, Service, UsageChunks, engine_id, raise_if_failed
from engine.server.tools import tools_of_request
from prep_common.text import shown

NO_VARIABLES = frozenset(
    {
        "chat_template",
        "documents",
        "is_truncated",
        "messages",
        "opening",
        "self",
        "template",
        "tokenize",
        "tools",
    }
)
FIELDS_OF_TEMPLATES = ("add_generation_prompt", "add_special_tokens", "continue_final_message")
"""The request's field decides, as in vLLM."""


@dataclass
class Chat:
    """A checked request, ready to run."""

    service: Service
    request: ChatCompletionRequest
    answer: Answer
    prompt: dict[str, Any]
    plan: ToolPlan
    params: SamplingParams
    role: str
    _calls: dict[int, ToolCallStream] = field(default_factory=dict)
    """Per choice: the tool calls in the text of a stream."""
    _forced: dict[int, str] = field(default_factory=dict)
    """Per choice: the text of a forced call so far."""

    async def full(self) -> dict[str, Any]:
        """Run to the end and return the answer."""
        last: RequestOutput | None = None
        async with aclosing(self.service.run(self.params.n, self._outputs())) as outputs:
            async for output in outputs:
                raise_if_failed(output)
                self.answer.count(output)
                last = output
        assert last is not None
        choices = []
        for number, completion in enumerate(last.outputs):
            choices.append(self._choice(completion))
            await let_others_run(number)
        return self.answer.whole(
            choices,
            shows_cached_tokens=self.service.shows_cached_tokens,
            prompt_logprobs=logprobs.prompt_logprobs(last.prompt_logprobs),
            prompt_token_ids=last.prompt_token_ids if self.request.return_token_ids else None,
            prompt_text=self.prompt["prompt"] if self.request.return_prompt_text else None,
        )

    async def stream(self) -> AsyncGenerator[dict[str, Any], None]:
        """Run and yield chunks: the role, what is generated, the reason of the end, and the usage if it is wanted."""
        usage = UsageChunks.of(self.request.stream_options)
        is_open = False
        async with aclosing(self.service.run(self.params.n, self._outputs())) as outputs:
            async for output in outputs:
                raise_if_failed(output)
                if not is_open:
                    is_open = True
                    self.answer.count_prompt(output)
                    more = {"usage": self.answer.usage_of(0)} if usage.always else {}
                    for number, chunk in enumerate(self._opening(output, more)):
                        yield chunk
                        await let_others_run(number)
                self.answer.count(output)
                for number, completion in enumerate(output.outputs):
                    await let_others_run(number)
                    if (choice := self._delta(completion)) is not None:
                        more = {"usage": self.answer.usage_of(completion.index)} if usage.always else {}
                        is_last = completion.finish_reason is not None and not usage.at_end
                        yield self.answer.body([choice], **more, **self.answer.ending(is_last))
        if usage.at_end:
            total = self.answer.usage(shows_cached_tokens=self.service.shows_cached_tokens)
            yield self.answer.body([], usage=total, **self.answer.ending(True))

    async def _outputs(self) -> AsyncGenerator[RequestOutput, None]:
        generated = self.service.llm.generate(
            self.prompt,  # type: ignore[arg-type]
            self.params,
            engine_id(self.answer.id),
            lora_request=self.service.models.find(self.answer.model)[1],  # it may be unloaded by now
            priority=self.service.priority(self.request),
            trace_headers=self.answer.trace_headers,
        )
        async with aclosing(generated) as outputs:
            async for output in outputs:
                yield output

    def _opening(self, output: RequestOutput, more: dict[str, Any]) -> Iterator[dict[str, Any]]:
        wants = self.request.return_token_ids
        first = {
            "prompt_token_ids": output.prompt_token_ids if wants else None,
            "prompt_text": self.prompt["prompt"] if self.request.return_prompt_text else None,
        }
        texts = [""]
        if echoed := self._echoed():
            texts.append(echoed)
        for position, text in enumerate(texts):
            for index in range(self.params.n):
                delta = {"role": self.role, "content": text} if position == 0 else {"content": text}
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                yield self.answer.body([choice], **more, **(first if position == 0 else {}))

    def _delta(self, completion: CompletionOutput) -> dict[str, Any] | None:
        """Return the choice of a chunk; None while nothing is certain."""
        is_last = completion.finish_reason is not None
        delta, has_calls = self._message_delta(completion, is_last)
        wants_tokens = self.request.logprobs or self.request.return_token_ids
        if not delta and not is_last and not wants_tokens:
            return None
        choice: dict[str, Any] = {
            "index": completion.index,
            "delta": delta,
            "logprobs": self._logprobs(completion),
            "finish_reason": self.plan.finish_reason if is_last and has_calls else completion.finish_reason,
        }
        if is_last:
            choice["stop_reason"] = completion.stop_reason
        choice["token_ids"] = completion.token_ids if self.request.return_token_ids else None
        return choice

    def _message_delta(self, completion: CompletionOutput, is_last: bool) -> tuple[dict[str, Any], bool]:
        """Return what is new in a message, and whether the message has tool calls."""
        if not self.plan.reads_calls:
            return ({"content": completion.text} if completion.text else {}), False
        index = completion.index
        if self.plan.call_schema is not None:  # the text is the call: it goes out whole, at the end
            self._forced[index] = self._forced.get(index, "") + completion.text
            if not is_last:
                return {}, False
            read = CompletionOutput(index, self._forced[index], [])
            self.plan.read(read)
            content, calls = read.text, [{"index": 0, **call} for call in read.tool_calls or []]
            has_calls = bool(calls)
        else:
            reader = self._calls.setdefault(index, ToolCallStream(self.plan.parser))
            content, calls = reader.push(completion.text, is_last=is_last)
            has_calls = reader.num_complete > 0
            if self.request.parallel_tool_calls is False:
                calls = [call for call in calls if call["index"] == 0]
        delta: dict[str, Any] = {"content": content} if content else {}
        if calls:
            delta["tool_calls"] = calls
        return delta, has_calls

    def _choice(self, completion: CompletionOutput) -> dict[str, Any]:
        token_ids = completion.token_ids
        token_logprobs = self._logprobs(completion)
        self.plan.read(completion)
        message: dict[str, Any] = {"role": self.role, "content": self._echoed() + completion.text}
        message |= dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        finish_reason = completion.finish_reason
        if calls := completion.tool_calls:
            if self.request.parallel_tool_calls is False:
                calls = calls[:1]
            content = completion.text or (None if self.plan.call_schema is None else "")  # as vLLM
            message |= {"content": content, "tool_calls": calls}
            finish_reason = self.plan.finish_reason
        choice: dict[str, Any] = {
            "index": completion.index,
            "message": message,
            "logprobs": token_logprobs,
            "finish_reason": finish_reason,
            "stop_reason": completion.stop_reason,
            "token_ids": token_ids if self.request.return_token_ids else None,
            "routed_experts": None,
        }
        return choice

    def _logprobs(self, completion: CompletionOutput) -> dict[str, Any] | None:
        if not self.request.logprobs or completion.logprobs is None:
            return None
        as_ids = bool(self.request.return_tokens_as_token_ids)
        num_top, tokenizer = self.request.top_logprobs or 0, self.service.tokenizer
        return logprobs.chat_logprobs(
            completion.token_ids, completion.logprobs, num_top, tokenizer, as_ids=as_ids
        )

    def _echoed(self) -> str:
        """Return the text of the last message, if the answer is to repeat it and continues its role."""
        last = self.request.messages[-1] if self.request.messages else {}
        content = last.get("content")
        if self.request.echo and last.get("role") == self.role and isinstance(content, str):
            return content
        return ""


def prepare(service: Service, request: ChatCompletionRequest, headers: Mapping[str, str]) -> Chat:
    """Check a request and render its messages. Raises ApiError, or ValueError for what is out of range."""
    name, _ = service.models.find(request.model)
    check(request)
    if request.top_logprobs and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs=true", param="top_logprobs")
    service.check_completions(1, request.n or 1)
    plan = tool_plan(request, service.tool_call_parser)
    prompt = render(service, request, plan)
    prompt["prompt_token_ids"] = truncated(prompt["prompt_token_ids"], request, service.max_model_len)
    is_new_name = request.max_completion_tokens is not None
    max_tokens = request.max_completion_tokens if is_new_name else request.max_tokens
    field_name = "max_completion_tokens" if is_new_name else "max_tokens"
    check_room(len(prompt["prompt_token_ids"]), max_tokens, service.max_model_len, field_name)
    params = sampling_params(
        request,
        max_tokens=max_tokens,
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=request.top_logprobs
        if request.echo and request.prompt_logprobs is None
        else request.prompt_logprobs,
    )
    if request.cache_salt is not None:
        prompt["cache_salt"] = request.cache_salt
    answer = service.answer("chat.completion", name, "chatcmpl", request, headers)
    if request.stream:
        answer.kind = "chat.completion.chunk"
    role = (
        "assistant" if request.add_generation_prompt else str(request.messages[-1].get("role", "assistant"))
    )
    return Chat(service, request, answer, prompt, plan, plan.constrain(params), role)


def tool_plan(request: ChatCompletionRequest, parser: str) -> ToolPlan:
    """Return what the tools and the tool choice mean. Without a choice, tools may be called."""
    if request.tools == []:
        raise ApiError(400, "tools must not be empty; leave the field out", param="tools")
    choice = request.tool_choice
    if choice is None:
        choice = "auto" if request.tools else "none"
    elif choice != "none" and not request.tools:
        raise ApiError(400, "tool_choice needs tools", param="tool_choice")
    return ToolPlan.of(request.tools, choice, parser)


def render(service: Service, request: ChatTemplateFields, plan: ToolPlan | None = None) -> dict[str, Any]:
    """Return the prompt of messages as text and token ids."""
    if request.add_generation_prompt and request.continue_final_message:
        message = "continue_final_message=true needs add_generation_prompt=false"
        raise ApiError(400, message, param="continue_final_message")
    return dict(
        service.processor.chat_prompt(
            plain_messages(request.messages),
            opening=plan.opening if plan else "",
            add_special_tokens=request.add_special_tokens,
            is_truncated=getattr(request, "truncate_prompt_tokens", None) is not None,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            tools=tools_of_request(request.tools) if request.tools else None,
            **_template_variables(request),
        )
    )


def _template_variables(request: ChatTemplateFields) -> dict[str, Any]:
    """Return the other variables of the template: not the template, nor what has a field of its own."""
    given = request.chat_template_kwargs or {}
    if wrong := sorted(given.keys() & NO_VARIABLES):
        message = f"chat_template_kwargs must not have {wrong[0]}: it is not a variable of the template"
        raise ApiError(400, message, param="chat_template_kwargs")
    variables: dict[str, Any] = {}
    if isinstance(request, ChatCompletionRequest):
        variables["documents"] = request.documents
        if (effort := request.reasoning_effort) is not None:
            variables |= {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    return variables | {name: value for name, value in given.items() if name not in FIELDS_OF_TEMPLATES}


def plain_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as templates expect them: text parts joined, arguments of calls parsed."""
    return [_plain(number, message) for number, message in enumerate(messages)]


def _plain(number: int, message: dict[str, Any]) -> dict[str, Any]:
    message = dict(message)
    place = f"messages[{number}]"
    if not isinstance(message.get("role"), str):
        raise ApiError(400, f"{place} needs a role: system, user, assistant or tool", param=place)
    content = message.setdefault("content", "")
    if not (isinstance(content, (str, list)) or (content is None and message["role"] == "assistant")):
        raise ApiError(400, f"{place}.content must be text or a list of parts", param=f"{place}.content")
    if message["role"] == "developer":
        message["role"] = "system"  # as in vLLM
    if isinstance(parts := message.get("content"), list):
        message["content"] = "\n".join(_text(part, f"messages[{number}].content") for part in parts)
    if isinstance(calls := message.get("tool_calls"), list):
        message["tool_calls"] = [_with_parsed_arguments(call, number) for call in calls]
    return message


def _text(part: Any, place: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise ApiError(
        400, f"{place} holds a part of type {shown(kind)}; this server takes text only", param=place
    )


def _with_parsed_arguments(call: Any, number: int) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(arguments := function.get("arguments"), str):
        return call
    try:
        parsed = from_json(arguments) if arguments else {}
    except ValueError:
        place = f"messages[{number}].tool_calls"
        raise ApiError(400, f"{place}: the arguments are not JSON: {shown(arguments)}", param=place) from None
    return {**call, "function": {**function, "arguments": parsed}}
