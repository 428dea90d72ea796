"""Bodies of requests, valid and broken, that two servers with OpenAI's API must treat alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SCHEMA = {"type": "object", "properties": {"title": {"enum": ["a", "b"]}}, "required": ["title"]}
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Find a title",
        "parameters": {"type": "object", "properties": {"n": {"enum": ["one", "two"]}}, "required": ["n"]},
    },
}
HELLO = [{"role": "user", "content": "What do you recommend?"}]


@dataclass(frozen=True)
class Body:
    """One request; `name` says what is special about it."""

    name: str
    path: str
    json: Any


def bodies() -> list[Body]:
    """Return every body. Greedy and short where the body allows it."""
    found = [*_shared(), *_text(), *_chat(), *_broken_json(), *_other_paths()]
    assert len({(body.path, body.name) for body in found}) == len(found)
    return found


def _text_body(name: str, **more: Any) -> Body:
    body = {"model": "shop", "prompt": "Our cheapest", "max_tokens": 4, "temperature": 0}
    return Body(name, TEXT, _known({**body, **more}))


def _chat_body(name: str, **more: Any) -> Body:
    body = {"model": "shop", "messages": HELLO, "max_tokens": 4, "temperature": 0}
    return Body(name, CHAT, _known({**body, **more}))


def _known(body: dict[str, Any]) -> dict[str, Any]:
    """Leave out what is given as `...`."""
    return {name: value for name, value in body.items() if value is not ...}


SHARED: dict[str, dict[str, Any]] = {
    "plain": {},
    "stream": {"stream": True},
    "stream with usage": {"stream": True, "stream_options": {"include_usage": True}},
    "stream with continuous usage": {
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
    "stream options without stream": {"stream_options": {"include_usage": True}},
    "n 3": {"n": 3, "temperature": 0.8, "seed": 7},
    "n 3 greedy": {"n": 3},
    "n 0": {"n": 0},
    "n negative": {"n": -1},
    "n text": {"n": "two"},
    "n float": {"n": 1.5},
    "n null": {"n": None},
    "n 100000": {"n": 100_000},
    "n 2 stream": {"n": 2, "stream": True, "temperature": 0.5, "seed": 1},
    "temperature -1": {"temperature": -1},
    "temperature 3": {"temperature": 3.0},
    "temperature text": {"temperature": "warm"},
    "temperature null": {"temperature": None},
    "temperature tiny": {"temperature": 1e-4},
    "top_p 0": {"top_p": 0},
    "top_p 1.1": {"top_p": 1.1},
    "top_p 0.5": {"top_p": 0.5, "temperature": 1.0, "seed": 3},
    "top_k -1": {"top_k": -1},
    "top_k 0": {"top_k": 0},
    "top_k -2": {"top_k": -2},
    "top_k 5": {"top_k": 5, "temperature": 1.0, "seed": 3},
    "top_k float": {"top_k": 1.5},
    "min_p 0.1": {"min_p": 0.1, "temperature": 1.0, "seed": 3},
    "min_p 2": {"min_p": 2},
    "repetition_penalty 1.2": {"repetition_penalty": 1.2},
    "repetition_penalty 0": {"repetition_penalty": 0},
    "repetition_penalty -1": {"repetition_penalty": -1},
    "presence_penalty 1": {"presence_penalty": 1.0},
    "presence_penalty 3": {"presence_penalty": 3.0},
    "frequency_penalty -2": {"frequency_penalty": -2.0},
    "frequency_penalty -3": {"frequency_penalty": -3.0},
    "seed 0": {"seed": 0, "temperature": 1.0},
    "seed negative": {"seed": -5, "temperature": 1.0},
    "seed huge": {"seed": 2**63},
    "seed text": {"seed": "x"},
    "max_tokens 0": {"max_tokens": 0},
    "max_tokens 1": {"max_tokens": 1},
    "max_tokens -1": {"max_tokens": -1},
    "max_tokens null": {"max_tokens": None, "stop": "."},
    "max_tokens text": {"max_tokens": "4"},
    "max_tokens words": {"max_tokens": "many"},
    "max_tokens float": {"max_tokens": 4.0},
    "max_tokens fraction": {"max_tokens": 4.5},
    "max_tokens true": {"max_tokens": True},
    "max_tokens beyond the model": {"max_tokens": 1_000_000},
    "min_tokens": {"min_tokens": 3},
    "min_tokens above max": {"min_tokens": 9},
    "min_tokens negative": {"min_tokens": -1},
    "stop text": {"stop": "e", "max_tokens": 20},
    "stop list": {"stop": ["zzz", "e"], "max_tokens": 20},
    "stop empty list": {"stop": []},
    "stop empty text": {"stop": ""},
    "stop in the text": {"stop": "e", "include_stop_str_in_output": True, "max_tokens": 20},
    "stop number": {"stop": 5},
    "stop null": {"stop": None},
    "stop_token_ids": {"stop_token_ids": [13, 14, 15], "max_tokens": 20},
    "stop_token_ids text": {"stop_token_ids": ["a"]},
    "ignore_eos": {"ignore_eos": True},
    "ignore_eos text": {"ignore_eos": "perhaps"},
    "skip_special_tokens false": {"skip_special_tokens": False},
    "logit_bias": {"logit_bias": {"300": 100}},
    "logit_bias far": {"logit_bias": {"99999999": 1}},
    "logit_bias word": {"logit_bias": {"word": 1}},
    "logit_bias list": {"logit_bias": [1]},
    "bad_words": {"bad_words": ["the"]},
    "allowed_token_ids": {"allowed_token_ids": [300, 301]},
    "allowed_token_ids empty": {"allowed_token_ids": []},
    "allowed_token_ids far": {"allowed_token_ids": [10**8]},
    "user": {"user": "me"},
    "priority 0": {"priority": 0},
    "priority 5": {"priority": 5},
    "cache_salt": {"cache_salt": "tenant"},
    "cache_salt empty": {"cache_salt": ""},
    "request_id": {"request_id": "mine"},
    "unknown field": {"frobnicate": 3},
    "model unknown": {"model": "gpt-9"},
    "model null": {"model": None},
    "model missing": {"model": ...},
    "model number": {"model": 5},
    "model empty": {"model": ""},
    "stream text": {"stream": "yes"},
    "stream word": {"stream": "sometimes"},
    "stream null": {"stream": None},
    "truncate_prompt_tokens": {"truncate_prompt_tokens": 3},
    "truncate_prompt_tokens 0": {"truncate_prompt_tokens": 0},
    "structured choice": {"structured_outputs": {"choice": ["red", "blue"]}, "max_tokens": 10},
    "structured regex": {"structured_outputs": {"regex": "[0-9]{3}"}, "max_tokens": 10},
    "structured json": {"structured_outputs": {"json": SCHEMA}, "max_tokens": 40},
    "structured two": {"structured_outputs": {"regex": "a", "choice": ["b"]}},
    "structured none": {"structured_outputs": {}},
    "structured bad regex": {"structured_outputs": {"regex": "(["}},
    "structured bad schema": {"structured_outputs": {"json": {"type": "nothing"}}},
    "structured grammar broken": {"structured_outputs": {"grammar": "root ::= ("}},
    "response_format text": {"response_format": {"type": "text"}},
    "response_format object": {"response_format": {"type": "json_object"}, "max_tokens": 10},
    "response_format schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA}},
        "max_tokens": 40,
    },
    "response_format schema missing": {"response_format": {"type": "json_schema"}},
    "response_format other": {"response_format": {"type": "yaml"}},
    "return_token_ids": {"return_token_ids": True},
    "return_token_ids stream": {"return_token_ids": True, "stream": True},
    "best_of": {"best_of": 2},
    "length_penalty": {"length_penalty": 1.5},
    "kv_transfer_params": {"kv_transfer_params": {}},
    "vllm_xargs": {"vllm_xargs": {"a": 1}},
}


def _shared() -> list[Body]:
    return [
        make(name, **more) for make in (_text_body, _chat_body) for name, more in SHARED.items()
    ]  # fmt: skip


def _text() -> list[Body]:
    cases: dict[str, dict[str, Any]] = {
        "prompt missing": {"prompt": ...},
        "prompt null": {"prompt": None},
        "prompt empty": {"prompt": ""},
        "prompt empty list": {"prompt": []},
        "prompt number": {"prompt": 5},
        "prompt ids": {"prompt": [300, 301, 302]},
        "prompt ids negative": {"prompt": [-1]},
        "prompt ids beyond": {"prompt": [10**7]},
        "prompt ids float": {"prompt": [1.5]},
        "prompts": {"prompt": ["Our", "The"]},
        "prompts with an empty one": {"prompt": ["Our", ""]},
        "prompts of ids": {"prompt": [[300, 301], [302]]},
        "prompts mixed": {"prompt": ["Our", [300]]},
        "prompt too long": {"prompt": [300] * 5000},
        "prompt with max_tokens too long": {"prompt": [300] * 2040, "max_tokens": 100},
        "prompt object": {"prompt": {"a": 1}},
        "prompt 0 bytes": {"prompt": "a\x00b"},
        "prompt emoji": {"prompt": "🦜 café"},
        "echo": {"echo": True},
        "echo alone": {"echo": True, "max_tokens": 0},
        "echo logprobs": {"echo": True, "logprobs": 1},
        "echo stream": {"echo": True, "stream": True},
        "echo 0 tokens logprobs": {"echo": True, "max_tokens": 0, "logprobs": 2},
        "logprobs 0": {"logprobs": 0},
        "logprobs 2": {"logprobs": 2},
        "logprobs 2 stream": {"logprobs": 2, "stream": True},
        "logprobs 200": {"logprobs": 200},
        "logprobs -1": {"logprobs": -1},
        "logprobs -2": {"logprobs": -2},
        "logprobs true": {"logprobs": True},
        "prompt_logprobs 1": {"prompt_logprobs": 1},
        "prompt_logprobs stream": {"prompt_logprobs": 1, "stream": True},
        "suffix": {"suffix": "end"},
        "add_special_tokens false": {"add_special_tokens": False},
        "max_tokens missing": {"max_tokens": ...},
        "max_completion_tokens": {"max_completion_tokens": 2},
        "return_tokens_as_token_ids": {"return_tokens_as_token_ids": True, "logprobs": 1},
        "prompt_embeds": {"prompt_embeds": "AAAA", "prompt": ...},
    }  # fmt: skip
    return [_text_body(name, **more) for name, more in cases.items()]


def _messages(*messages: Any) -> dict[str, Any]:
    return {"messages": list(messages)}


def _chat() -> list[Body]:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"n": 1}'}}
    cases: dict[str, dict[str, Any]] = {
        "messages missing": {"messages": ...},
        "messages empty": {"messages": []},
        "messages text": {"messages": "Hello"},
        "messages null": {"messages": None},
        "message text": _messages("Hello"),
        "role missing": _messages({"content": "Hello"}),
        "role unknown": _messages({"role": "king", "content": "Hello"}),
        "role number": _messages({"role": 1, "content": "Hello"}),
        "content missing": _messages({"role": "user"}),
        "content null": _messages({"role": "user", "content": None}),
        "content empty": _messages({"role": "user", "content": ""}),
        "content number": _messages({"role": "user", "content": 5}),
        "content parts": _messages({"role": "user", "content": [{"type": "text", "text": "Hello"}]}),
        "content part broken": _messages({"role": "user", "content": [{"type": "text"}]}),
        "content part unknown": _messages({"role": "user", "content": [{"type": "smell", "smell": "x"}]}),
        "system": _messages({"role": "system", "content": "Be short."}, *HELLO),
        "developer": _messages({"role": "developer", "content": "Be short."}, *HELLO),
        "assistant last": _messages(*HELLO, {"role": "assistant", "content": "The"}),
        "continue the assistant": {
            **_messages(*HELLO, {"role": "assistant", "content": "The"}),
            "add_generation_prompt": False,
            "continue_final_message": True,
        },
        "continue and prompt": {"add_generation_prompt": True, "continue_final_message": True},
        "message name": _messages({"role": "user", "name": "ann", "content": "Hello"}),
        "message extra": _messages({"role": "user", "content": "Hello", "mood": "good"}),
        "tool message": _messages(
            *HELLO,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ),
        "tools none": {"tools": [TOOL], "tool_choice": "none"},
        "tools required": {"tools": [TOOL], "tool_choice": "required", "max_tokens": 60},
        "tools named": {
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "find"}},
            "max_tokens": 60,
        },
        "tools named stream": {
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "find"}},
            "max_tokens": 60,
            "stream": True,
        },
        "tools named unknown": {
            "tools": [TOOL],
            "tool_choice": {"type": "function", "function": {"name": "lose"}},
        },
        "tool_choice without tools": {"tool_choice": "required"},
        "tool_choice auto without tools": {"tool_choice": "auto"},
        "tool_choice word": {"tools": [TOOL], "tool_choice": "maybe"},
        "tools empty": {"tools": []},
        "tools broken": {"tools": [{"type": "function"}]},
        "logprobs true": {"logprobs": True},
        "logprobs top 2": {"logprobs": True, "top_logprobs": 2},
        "logprobs top 2 stream": {"logprobs": True, "top_logprobs": 2, "stream": True},
        "top_logprobs alone": {"top_logprobs": 2},
        "top_logprobs 200": {"logprobs": True, "top_logprobs": 200},
        "top_logprobs -2": {"logprobs": True, "top_logprobs": -2},
        "logprobs number": {"logprobs": 3},
        "max_completion_tokens": {"max_completion_tokens": 2},
        "max_completion_tokens alone": {"max_completion_tokens": 2, "max_tokens": ...},
        "max_completion_tokens 0": {"max_completion_tokens": 0},
        "echo": {"echo": True},
        "add_special_tokens": {"add_special_tokens": True},
        "chat_template": {"chat_template": "{{ messages[0].content }}"},
        "chat_template_kwargs": {"chat_template_kwargs": {"a": 1}},
        "documents": {"documents": [{"title": "a", "text": "b"}]},
        "prompt_logprobs 1": {"prompt_logprobs": 1},
        "reasoning_effort": {"reasoning_effort": "low"},
        "reasoning_effort unknown": {"reasoning_effort": "extreme!"},
        "parallel_tool_calls": {"parallel_tool_calls": False},
        "too long": _messages({"role": "user", "content": "word " * 4000}),
        "emoji": _messages({"role": "user", "content": "🦜 café"}),
    }  # fmt: skip
    return [_chat_body(name, **more) for name, more in cases.items()]


def _broken_json() -> list[Body]:
    texts = {
        "nothing": "",
        "text": "hello",
        "half": '{"model": "shop", ',
        "list": "[]",
        "number": "5",
        "null": "null",
        "quoted": '"x"',
    }
    found = [Body(f"body {name}", path, raw) for path in (TEXT, CHAT) for name, raw in texts.items()]
    deep = "[" * 2000 + "]" * 2000
    return [*found, Body("body deep", CHAT, '{"model": "shop", "messages": ' + deep + "}")]


def _other_paths() -> list[Body]:
    return [
        Body("tokenize", "/tokenize", {"model": "shop", "prompt": "Hello there"}),
        Body(
            "tokenize strings", "/tokenize", {"model": "shop", "prompt": "Hello", "return_token_strs": True}
        ),
        Body("tokenize chat", "/tokenize", {"model": "shop", "messages": HELLO}),
        Body("tokenize nothing", "/tokenize", {"model": "shop"}),
        Body("tokenize number", "/tokenize", {"model": "shop", "prompt": 4}),
        Body("tokenize other model", "/tokenize", {"model": "other", "prompt": "a"}),
        Body("detokenize", "/detokenize", {"model": "shop", "tokens": [300, 301]}),
        Body("detokenize none", "/detokenize", {"model": "shop", "tokens": []}),
        Body("detokenize text", "/detokenize", {"model": "shop", "tokens": ["a"]}),
        Body("detokenize negative", "/detokenize", {"model": "shop", "tokens": [-1]}),
        Body("detokenize missing", "/detokenize", {"model": "shop"}),
        Body("nowhere", "/v1/nowhere", {}),
        Body("embeddings", "/v1/embeddings", {"model": "shop", "input": "a"}),
    ]
