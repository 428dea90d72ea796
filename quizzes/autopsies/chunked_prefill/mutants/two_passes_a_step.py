"""Caught by check_a_step_is_one_forward_pass: decodes and chunk run one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def chunked_prefill(model: Any, prompt: list[int], decodes: Callable[[], list[str]], budget: int) -> Any:
    computed = 0
    answers: dict[str, Any] = {}
    while computed < len(prompt):
        names = decodes()
        room = budget - len(names)
        if room < 1:
            raise ValueError(f"{len(names)} decodes leave no room for the prompt in a budget of {budget}")
        chunk = prompt[computed : computed + room]
        if names:
            model.step([(name, 0, [0]) for name in names])
        answers = model.step([("prompt", computed, chunk)])
        computed += len(chunk)
    return answers["prompt"]
