"""A long prompt in chunks, with decodes in between."""

from collections.abc import Callable
from typing import Any


def chunked_prefill(
    model: Any, prompt: list[int], decode: Callable[[], None], chunk_size: int = 1024
) -> None:
    chunks = [prompt[i : i + chunk_size] for i in range(0, len(prompt), chunk_size)]
    for chunk in chunks:
        output = model.process(chunk)  # noqa: F841
        decode()
