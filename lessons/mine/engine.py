"""Open an engine that is made of the learner's pieces; ours fill the gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lessons.mine.pieces import Pieces
from lessons.mine.workspace import using

if TYPE_CHECKING:
    from engine.llm import LLM

WHOLE_PROMPTS = "09.2"
"""The scheduler of this exercise computes a prompt in one step."""


def settings_for(pieces: Pieces, **engine: Any) -> dict[str, Any]:
    """Return the arguments of `LLM` that put the pieces behind their seams. Arguments of the caller win."""
    settings: dict[str, Any] = {"scheduler_cls": "lessons.mine.scheduler:MineScheduler"}
    if pieces.has("attention") or pieces.has("decode"):
        settings["attention_backend"] = "lessons.mine.attention:MineAttention"
    if pieces.has("sampler"):
        settings["logits_processors"] = ["lessons.mine.sampling:MineFilter"]
    if pieces.has("drafter"):
        from lessons.mine.drafter import SETTINGS

        settings["speculative_config"] = {"method": "lessons.mine.drafter:MineDrafter", **SETTINGS}
    if pieces.has("scheduler") and pieces["scheduler"].exercise == WHOLE_PROMPTS:
        settings["enable_chunked_prefill"] = False
    return settings | engine


def open_mine(pieces: Pieces, model: str = "shop", **engine: Any) -> LLM:
    """Load a model into an engine of these pieces. `engine`: further arguments of `LLM`."""
    from engine.llm import LLM

    with using(pieces):
        return LLM(model, **settings_for(pieces, **engine))
