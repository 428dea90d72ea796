"""E41: positions at which a grammar leaves one token only: what jump-forward decoding need not ask a model for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.structured_output.token_mask import Text


@dataclass(frozen=True)
class Forced:
    """One output, letter by letter."""

    positions: Annotated[int, "positions"]
    """Tokens of the output, end-of-sequence included."""
    forced: Annotated[int, "positions"]
    """With exactly one token allowed."""
    forced_share: Annotated[float, "share"]
    choices: Annotated[list[int], "tokens"]
    """By position: how many tokens were allowed."""


@experiment("E41")
def forced(
    ctx: Context,
    *,
    texts: Annotated[list[Text], Field(min_length=1, max_length=20)] = ("small", "smart", "medium"),
    said: Text = "smart",
) -> Forced:
    """Walk along `said`, one of `texts`, with a vocabulary of single characters, and look at every mask."""
    import re

    import numpy as np

    from quizzes.experiments.structured_output._toy import bits_of, compile_regex

    if said not in texts:
        raise ValueError(f"{said!r} is none of the texts: {', '.join(texts)}")
    letters = sorted(set("".join(texts)))
    grammar = compile_regex(letters, "|".join(re.escape(text) for text in texts)).start()
    size = len(letters) + 1
    counts = []
    for token in [*(letters.index(letter) for letter in said), len(letters)]:
        words = np.zeros(-(-size // 32), np.int32)
        grammar.fill_bitmask(words)
        counts.append(len(bits_of(words.view(np.uint32).tolist(), size)))
        grammar.accept_tokens([token])
    alone = sum(count == 1 for count in counts)
    return Forced(len(counts), alone, alone / len(counts), counts)
