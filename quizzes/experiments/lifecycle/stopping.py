"""Rules that end a request, and stop strings in its text."""

from typing import Any

from engine.config import EngineArgs
from engine.core.request import Request
from engine.sampling_params import SamplingParams
from quizzes.experiments import Context, Result, arg, experiment

EOS, STOP_ID, WORD = 2, 77, 5


@experiment("E66")
def stop_rules(
    ctx: Context,
    prompt: int = arg(20, 1, 1000),
    script: int = arg(60, 1, 400),
    eos_at: int = arg(12, 0, 400),
    stop_id_at: int = arg(0, 0, 400),
    max_tokens: int = arg(40, 1, 400),
    min_tokens: int = arg(0, 0, 400),
    ignore_eos: bool = False,
    max_model_len: int = arg(2000, 2, 4000),
) -> Result:
    """Find which rule ends a request first: end-of-sequence, stop ids, min_tokens, max_tokens or the model's length.

    The model outputs `script` tokens; number `eos_at` (from 1) is end-of-sequence, number `stop_id_at` a stop id; 0
    for neither. `min_tokens` is capped by max_tokens.

    Returns:
        finish_reason: stop or length.
        output_tokens [tokens]: Tokens with the one that ended the answer.
        ended_by: eos, stop_id or length.
        tokens_after [tokens]: Tokens of the script that were not generated.
        steps [steps]
    """
    words = [WORD] * max(script, max_tokens)
    for at, token in ((stop_id_at, STOP_ID), (eos_at, EOS)):
        if 0 < at <= len(words):
            words[at - 1] = token
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min(min_tokens, max_tokens),
        stop_token_ids=[STOP_ID],
        ignore_eos=ignore_eos,
    )
    engine = ctx.core(max_model_len=max_model_len)
    request = Request("r", list(range(100, 100 + prompt)), params, eos_token_ids=frozenset({EOS}))
    engine.add_request(request, words)
    engine.run()
    made, reason = request.output_token_ids, request.status.finish_reason or ""
    ended_by = {EOS: "eos", STOP_ID: "stop_id"}.get(made[-1], "length")
    return Result(
        finish_reason=reason,
        output_tokens=len(made),
        ended_by=ended_by if reason == "stop" else "length",
        tokens_after=len(words) - len(made),
        steps=engine.num_steps,
    )


@experiment("E66")
def stop_scan(
    text: str = arg("We have it. Volume 3 costs 700 yen. END of answer.", chars=(1, 400)),
    stop: list[str] = arg(["END"], chars=(1, None), count=(1, 4)),
    min_tokens: int = arg(0, 0, 200),
    include: bool = False,
) -> Result:
    """Push a text with a stop string through `engine/frontend/detokenizer.py`: what the client sees, and when.

    Returns: The text is tokenised with the shop model's tokenizer and pushed token by token, as in the engine.
        tokens: The pieces of the whole text.
        shown: Text that the client has at the end.
        shown_chars [characters]
        tokens_used [tokens]: Tokens sampled until the stop string was complete.
        stop_spans_tokens, stopped
        most_held [characters]: Most characters held back at once, because a stop string might begin there.
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
    stop_string = output.stop_string or ""
    return Result(
        tokens=pieces,
        shown=output.text,
        shown_chars=len(output.text),
        tokens_used=used,
        stop_spans_tokens=bool(stop_string) and not any(stop_string in piece for piece in pieces),
        stopped=bool(stop_string),
        most_held=held,
        stop_reason=stop_string,
    )
