"""Chat template: render messages to the text format that a model was trained on.

A template is a Jinja program from the checkpoint, so it runs in Jinja's sandbox. It has the functions that
transformers offers (transformers/utils/chat_template_utils.py), and gives the same text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prep_common.text import shown

ChatMessage = dict[str, Any]  # A message with "role", and usually "content"

_CONTINUE_HERE = "<<prep:continue-here>> "
"""Marks the end of an open message. Templates that trim their output remove its last space."""


class ChatTemplateError(ValueError):
    """Messages that the model's chat template cannot render."""


def render_chat(
    template: str,
    messages: Sequence[ChatMessage],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: list[dict[str, Any]] | None = None,
    **variables: Any,
) -> str:
    """Render a conversation.

    `add_generation_prompt` opens the assistant's turn; `continue_final_message` instead leaves the
    last message open for the model to continue. `variables`: other variables of the template.
    """
    messages = _checked(messages)
    if continue_final_message:
        if add_generation_prompt:
            raise ChatTemplateError(
                "add_generation_prompt=True opens a new turn and continue_final_message=True goes on with "
                "the last one; choose one of them"
            )
        content = messages[-1].get("content")
        if not isinstance(content, str):
            raise ChatTemplateError(
                f"continue_final_message needs text as the last message's content, got {shown(content)}"
            )
        messages[-1]["content"] = content + _CONTINUE_HERE
    variables = {"documents": None, **variables, "messages": messages, "tools": tools}
    try:
        text = _compile(template).render(variables, add_generation_prompt=add_generation_prompt)
    except ChatTemplateError:
        raise
    except Exception as error:  # any error of a template is about these messages
        raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error
    if not continue_final_message:
        return text
    end = text.rfind(_CONTINUE_HERE.rstrip())
    if end < 0:
        raise ChatTemplateError("the chat template changes the final message, so it cannot be continued")
    is_trimmed = not text.startswith(_CONTINUE_HERE, end)
    return text[:end].rstrip() if is_trimmed else text[:end]


def _checked(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Copy messages without None values, which many templates print as the word "None"."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ChatTemplateError(
            f'messages must be a list such as [{{"role": "user", "content": "Hello"}}], got {shown(messages)}'
        )
    for position, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ChatTemplateError(
                f'messages[{position}] must be a dict with "role" and "content", got {shown(message)}'
            )
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


@lru_cache(maxsize=32)
def _compile(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except TemplateError as error:
        line = getattr(error, "lineno", "?")
        raise ChatTemplateError(f"the chat template does not compile: line {line}: {error}") from error


class _GenerationBlock(Extension):
    """{% generation %} marks the assistant's words for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the name Jinja reads

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes <, > and & for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
