"""Chunked prefill: each step one forward pass, decodes first, the prompt with what is left of the budget."""

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
        rows = [(name, 0, [0]) for name in names] + [("prompt", computed, chunk)]
        answers = model.step(rows)
        computed += len(chunk)
    return answers["prompt"]
