"""Caught by check_a_budget_that_decodes_use_up_is_refused: a full budget still lets one token in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def chunked_prefill(model: Any, prompt: list[int], decodes: Callable[[], list[str]], budget: int) -> Any:
    computed = 0
    answers: dict[str, Any] = {}
    while computed < len(prompt):
        names = decodes()
        room = budget - len(names)
        room = max(room, 1)
        chunk = prompt[computed : computed + room]
        rows = [(name, 0, [0]) for name in names] + [("prompt", computed, chunk)]
        answers = model.step(rows)
        computed += len(chunk)
    return answers["prompt"]
