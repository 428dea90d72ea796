"""Keep a conversation within a token budget by dropping its least important turns.

    system prompt      always kept            its prefix stays cached
    last message       always kept            the question
    tool results       dropped first, oldest first
    other turns        then, oldest first

Dropping a turn changes everything behind it: the prefix cache hits only the messages in front of the first gap.
Counts are estimates: the gateway has no tokenizer of the model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CHARACTERS_PER_TOKEN = 4
OVERHEAD = 4
"""Tokens of a message besides its text: role and separators."""


@dataclass(frozen=True)
class Trimmed:
    """A conversation within its budget."""

    messages: list[dict[str, Any]]
    num_before: int
    num_after: int
    """Estimated tokens."""
    num_dropped: int
    num_prefix_tokens_lost: int
    """Estimated tokens behind the first gap that a prefix cache would have had from the turn before."""

    @property
    def fits(self) -> bool:
        return self.num_after > 0


def estimated_tokens(value: Any) -> int:
    """Return an estimate for a text, a message, or a list of these."""
    if isinstance(value, str):
        return -(-len(value) // CHARACTERS_PER_TOKEN)
    if isinstance(value, dict):
        content = value.get("content")
        calls = value.get("tool_calls")
        parts = (
            content if isinstance(content, str) else json.dumps(content or ""),
            json.dumps(calls) if calls else "",
        )
        return OVERHEAD + sum(map(estimated_tokens, parts))
    if isinstance(value, list):
        return len(value) if value and isinstance(value[0], int) else sum(map(estimated_tokens, value))
    return 0


def trim(messages: Sequence[dict[str, Any]], budget: int) -> Trimmed:
    """Return the messages that fit into `budget` tokens.

    A call of a tool and its results go together. If system prompt and last message alone exceed the budget, they are
    all that is left, and the backend decides.
    """
    total = estimated_tokens(list(messages))
    kept = list(range(len(messages)))
    size = total
    for group in _groups(messages):
        if size <= budget:
            break
        kept = [index for index in kept if index not in group]
        size -= sum(estimated_tokens(messages[index]) for index in group)
    gap = next((place for place, index in enumerate(kept) if place != index), len(kept))
    lost = sum(estimated_tokens(messages[index]) for index in kept[gap:-1])
    return Trimmed([messages[index] for index in kept], total, size, len(messages) - len(kept), lost)


def _groups(messages: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Return what may be dropped, in this order: each a list of indices."""
    last = len(messages) - 1
    groups: list[list[int]] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role in ("system", "developer") or index == last:
            continue
        if role == "tool" and groups and _is_call(messages[groups[-1][0]]):
            groups[-1].append(index)
        else:
            groups.append([index])
    return sorted(groups, key=lambda group: not _is_call(messages[group[0]]))


def _is_call(message: dict[str, Any]) -> bool:
    return bool(message.get("tool_calls"))
