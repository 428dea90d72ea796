from typing import Any

from engine.config import EngineArgs
from engine.sampling_params import SamplingParams
from quizzes.experiments import Context, Result, arg, experiment


@experiment("E66")
def stop_scan(
    ctx: Context,
    text: str = arg("We have it. Volume 3 costs 700 yen. END of answer.", chars=(1, 400)),
    stop: list[str] = arg(["END"], chars=(1, None), count=(1, 4)),
    min_tokens: int = arg(0, 0, 200),
    include: bool = False,
) -> Result:
    """Push a text with a stop string through the engine's detokenizer and record what the client sees, and when.

    Uses `engine/frontend/detokenizer.py`.

    Returns:
        The text is tokenised with the shop model's tokenizer and pushed token by token, as in the engine.
        tokens: The pieces of the whole text.
        shown: Text that the client has at the end.
        shown_chars [characters]
        tokens_used [tokens]: Tokens sampled until the stop string was complete.
        stop_spans_tokens, stopped
        most_held [characters]: The most characters that a stream held back at once, because a stop string might begin
            there.
        stop_reason: The stop string that was found; empty if none.
    """
    from engine.frontend.detokenizer import Detokenizer, OutputText
    from engine.frontend.llm_engine import load_tokenizer

    tokenizer: Any = load_tokenizer(EngineArgs.create(model="shop"))
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
    return Result(
        tokens=pieces,
        shown=output.text,
        shown_chars=len(output.text),
        tokens_used=used,
        stop_spans_tokens=bool(found) and not any(found in piece for piece in pieces),
        stopped=bool(found),
        most_held=held,
        stop_reason=found,
    )
