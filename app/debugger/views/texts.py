"""Token ids as text for runs of the shipped models, whose tokenizers are read without the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import engine.zoo
from engine.trace.format import shown_name

_MODELS = Path(engine.zoo.__file__).parent / "models"

Speller = Callable[[int], str]


def speller(header: dict[str, Any]) -> Speller | None:
    """A function from token id to text for a run; None if its tokenizer is not installed."""
    model = str(header.get("model") or "")
    if not model or "/" in model or not (_MODELS / model / "tokenizer.json").is_file():
        return None
    try:
        return _speller(model)
    except (ImportError, ValueError):
        return None


@lru_cache(maxsize=4)
def _speller(model: str) -> Speller:
    from engine.frontend.tokenizer import Tokenizer  # 0.1 s, and only for runs that have text

    return Tokenizer.from_folder(_MODELS / model).token_text


def visible(text: str) -> str:
    """Replace white space with visible characters, and control characters with escapes."""
    return shown_name(text.replace("\n", "↵").replace("\t", "⇥").replace(" ", "·"))


def shortened(text: str, most: int) -> str:
    """The text with at most so many characters, by an ellipsis at its end."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def text_of(tokens: list[int], spell: Speller | None) -> str:
    """Tokens as visible text, or their ids without a tokenizer."""
    return visible("".join(map(spell, tokens))) if spell else " ".join(map(str, tokens))
