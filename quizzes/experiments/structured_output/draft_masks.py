"""E41 with E36: the masks of a row that holds drafts: one behind the newest token and one behind each draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.structured_output.token_mask import Text


@dataclass(frozen=True)
class DraftMasks:
    """What the grammar hands to the sampler for one row."""

    rows: Annotated[int, "masks"]
    mask_bytes: Annotated[int, "B"]
    allowed: Annotated[list[int], "tokens"]
    """By mask: tokens that may come; all of them behind a draft that breaks the grammar."""
    legal_drafts: Annotated[int, "drafts"]
    """Drafts from the left that the grammar would take."""
    position_after: Annotated[int, "tokens"]
    """How far the grammar stands when the masks are made: drafts are taken back."""


@experiment("E41", "E36")
def draft_masks(
    ctx: Context,
    *,
    vocabulary: Annotated[list[Text], Field(min_length=1, max_length=200)] = (
        "a",
        "b",
        "c",
        "ab",
        "bc",
        "abc",
    ),
    regex: Annotated[str, Field(min_length=1, max_length=200)] = "(abc)+",
    said: Annotated[list[Text], Field(max_length=50)] = ("a",),
    drafts: Annotated[list[Text], Field(max_length=16)] = ("b", "c", "c"),
) -> DraftMasks:
    """Build the masks of one row with drafts, as `engine/grammar/manager.py` does for every structured row."""
    import numpy as np

    from engine.grammar.manager import fill_positions
    from quizzes.experiments.structured_output._toy import bits_of, compile_regex

    ids = {token: index for index, token in enumerate(vocabulary)}
    grammar = compile_regex(vocabulary, regex).start()
    told = [ids.get(token, len(vocabulary)) for token in said]
    grammar.accept_tokens(told)
    guesses = [ids.get(token, len(vocabulary)) for token in drafts]
    legal = len(grammar.validate_tokens(guesses))
    words = np.zeros((1 + len(guesses), -(-(len(vocabulary) + 1) // 32)), np.int32)
    fill_positions(grammar, guesses, words)
    undone = 0
    while True:  # how many tokens can be taken back is where the grammar stands
        try:
            grammar.rollback(1)
        except ValueError:
            break
        undone += 1
    size = len(vocabulary) + 1
    return DraftMasks(
        rows=len(words),
        mask_bytes=words.nbytes,
        allowed=[len(bits_of(line.tolist(), size)) for line in words.view(np.uint32)],
        legal_drafts=legal,
        position_after=undone,
    )
