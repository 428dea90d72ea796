"""Read a log of prompts: one request of OpenAI's API per line, in order of arrival.

{"messages": [{"role": "user", "content": "Is volume 3 in stock?"}]}
{"prompt": "Once upon a time", "model": "my-adapter", "cache_salt": "tenant-a"}
{"prompt": [17, 4, 99]}
{"body": {"messages": [...]}}                    a line of OpenAI's batch files
{"prompt": 57, "prompt_text": "...", ...}        a line of prep serve --request-log --log-prompts
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import ConfigError
from engine.frontend.tokenizer import Tokenizer

EXAMPLE = '{"messages": [{"role": "user", "content": "..."}]} or {"prompt": "..."}'


@dataclass(frozen=True)
class LoggedPrompt:
    """The prompt of one request as the engine's prefix cache sees it."""

    token_ids: list[int]
    model: str | None = None
    """Name of the model or the adapter. Requests for different ones share no blocks."""
    cache_salt: str | None = None


def read_prompts(path: Path, tokenizer: Tokenizer) -> list[LoggedPrompt]:
    """Return the prompts of a JSON Lines file, tokenised.

    Raises ConfigError with the line's number for a line without a prompt, and for a file without lines; OSError if the
    file cannot be read.
    """
    prompts = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                prompts.append(_read_line(line, f"{path}, line {number}", tokenizer))
    if not prompts:
        raise ConfigError(f"{path} holds no prompts; each line is an object such as {EXAMPLE}")
    return prompts


def _read_line(line: bytes, where: str, tokenizer: Tokenizer) -> LoggedPrompt:
    try:
        body = _parse(line)
        if isinstance(body, dict) and isinstance(body.get("body"), dict):
            body = body["body"]
        if not isinstance(body, dict):
            raise ValueError(f"got {line[:60].decode(errors='replace')!r}")
        tokens = _tokenize(body, tokenizer)
        if not tokens:
            raise ValueError("the prompt is empty")
        return LoggedPrompt(tokens, _text(body, "model"), _text(body, "cache_salt"))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"{where}: {error}; expected an object such as {EXAMPLE}") from None


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode())
    except ValueError:
        raise ValueError("the line is not JSON in UTF-8") from None


def _tokenize(body: dict[str, Any], tokenizer: Tokenizer) -> list[int]:
    prompt = body.get("prompt_text", body.get("prompt"))
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    if isinstance(prompt, list) and all(type(token) is int and token >= 0 for token in prompt):
        return prompt
    if isinstance(body.get("messages"), list):
        text = tokenizer.render_chat(body["messages"], tools=body.get("tools"))
        return tokenizer.encode(text, add_special_tokens=False)
    raise ValueError(
        "the log holds no prompt texts; start the server with --log-prompts"
        if "finish_reason" in body
        else f"no prompt among the keys {sorted(body)}"
        if prompt is None
        else f"the prompt is a string or a list of token ids, got {str(prompt)[:40]}"
    )


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {value!r}")
    return value
