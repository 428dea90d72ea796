"""E41: which tokens a grammar allows behind what was said so far, and the bits that the sampler gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment

Text = Annotated[str, Field(min_length=1, max_length=40)]


@dataclass(frozen=True)
class Mask:
    """One row of a step's bitmask."""

    allowed: Annotated[list[str], "tokens"]
    """Sorted by their place in the vocabulary; end-of-sequence is "<eos>"."""
    num_allowed: Annotated[int, "tokens"]
    eos_allowed: bool
    accepted: Annotated[int, "tokens"]
    """Of `said`, from the left: what the grammar took."""
    words: Annotated[list[int], "int32"]
    """Bit v % 32 of word v // 32 stands for token v."""


@experiment("E41")
def token_mask(
    ctx: Context,
    *,
    vocabulary: Annotated[list[Text], Field(min_length=1, max_length=200)] = (
        "t",
        "true",
        "tru",
        "e",
        "ue",
        "r",
        "false",
        "fal",
        "se",
        "f",
        " ",
    ),
    regex: Annotated[str, Field(min_length=1, max_length=200)] = "true|false",
    said: Annotated[list[Text], Field(max_length=50)] = ("t",),
) -> Mask:
    """Compile a regular expression for a toy vocabulary and ask for the mask behind some tokens of it."""
    import numpy as np

    from quizzes.experiments.structured_output._toy import bits_of, compile_regex

    compiled = compile_regex(vocabulary, regex)
    grammar = compiled.start()
    ids = {token: index for index, token in enumerate(vocabulary)}
    accepted = grammar.validate_tokens([ids.get(token, len(vocabulary)) for token in said])
    grammar.accept_tokens(accepted)
    words = np.zeros(-(-(len(vocabulary) + 1) // 32), np.int32)
    grammar.fill_bitmask(words)
    names = [*vocabulary, "<eos>"]
    allowed = bits_of(words.view(np.uint32).tolist(), len(names))
    return Mask(
        allowed=[names[token] for token in allowed],
        num_allowed=len(allowed),
        eos_allowed=len(vocabulary) in allowed,
        accepted=len(accepted),
        words=words.tolist(),
    )
