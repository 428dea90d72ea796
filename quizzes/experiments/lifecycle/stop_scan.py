"""E66: a stop string in a stream of tokens: what the client sees, when, and how many tokens count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Scan:
    """The text is tokenised with the shop model's tokenizer and pushed token by token, as the engine would."""

    tokens: list[str]
    """The pieces of the whole text."""
    shown: str
    """What the client has in the end."""
    shown_chars: Annotated[int, "characters"]
    tokens_used: Annotated[int, "tokens"]
    """Sampled until the stop string was complete; the rest never existed."""
    stop_spans_tokens: bool
    stopped: bool
    most_held: Annotated[int, "characters"]
    """The most characters that a stream held back at once, because a stop string might begin there."""
    stop_reason: str
    """The stop string that was found; empty if none."""


@experiment("E66")
def stop_scan(
    ctx: Context,
    *,
    text: Annotated[
        str, Field(min_length=1, max_length=400)
    ] = "We have it. Volume 3 costs 700 yen. END of answer.",
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=4)] = ("END",),
    min_tokens: Annotated[int, Field(ge=0, le=200)] = 0,
    include: bool = False,
) -> Scan:
    """Push a text through the engine's detokenizer with stop strings (`engine/frontend/detokenizer.py`)."""
    from engine.config import EngineArgs
    from engine.frontend.detokenizer import Detokenizer, OutputText
    from engine.frontend.llm_engine import load_tokenizer
    from engine.sampling_params import SamplingParams

    tokenizer = load_tokenizer(EngineArgs.create(model="shop"))
    ids = tokenizer.encode(text, add_special_tokens=False)
    params = SamplingParams(
        stop=list(stop), max_tokens=1000, min_tokens=min_tokens, include_stop_str_in_output=include
    )
    output = OutputText(Detokenizer(tokenizer, []), params)
    decoded, used, held = Detokenizer(tokenizer, []), 0, 0
    pieces = [decoded.push([token_id]) for token_id in ids]
    for token_id in ids:
        used += 1
        output.push([token_id])
        if output.stop_string is not None:
            break
        held = max(held, len("".join(pieces[:used])) - len(output.text))
    output.close()
    found = output.stop_string or ""
    return Scan(
        tokens=pieces,
        shown=output.text,
        shown_chars=len(output.text),
        tokens_used=used,
        stop_spans_tokens=bool(found) and not any(found in piece for piece in pieces),
        stopped=bool(found),
        most_held=held,
        stop_reason=found,
    )
