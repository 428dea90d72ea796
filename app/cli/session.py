"""Open an engine from the command line and describe its outputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from app.cli import terminal
from common.text import counted

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.outputs import RequestOutput


@contextmanager
def open_llm(model: str, engine: dict[str, Any]) -> Iterator[LLM]:
    """Load a model, and shut it down at the end."""
    with terminal.loading(model):
        from engine.llm import LLM

        llm = LLM(model, **engine)
    with llm:
        yield llm


def speed_line(output: RequestOutput, num_tokens: int, seconds: float) -> str:
    """Return the dim line under an answer: tokens, time, cache hits."""
    reasons = {completion.finish_reason for completion in output.outputs}
    ending = f", ended by {'/'.join(sorted(map(str, reasons)))}" if output.finished else ""
    return (
        f"{counted(num_tokens, 'token')} in {seconds:.2f} s ({num_tokens / max(seconds, 1e-9):,.0f} tok/s), "
        f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens cached{ending}"
    )
