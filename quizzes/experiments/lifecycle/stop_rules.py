from engine.core.request import Request
from engine.sampling_params import SamplingParams
from quizzes.experiments import Context, CoreEngine, Result, arg, experiment
from quizzes.experiments.core_engine import Outcome

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
    if stop_id_at and stop_id_at <= len(words):
        words[stop_id_at - 1] = STOP_ID
    if eos_at and eos_at <= len(words):
        words[eos_at - 1] = EOS
    params = SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min(min_tokens, max_tokens),
        stop_token_ids=[STOP_ID],
        ignore_eos=ignore_eos,
    )
    engine = _Scripted(ctx, max_model_len)
    request = Request("r", list(range(100, 100 + prompt)), params, eos_token_ids=frozenset({EOS}))
    engine.start(request, words)
    engine.core.run()
    made = request.output_token_ids
    ended_by = {EOS: "eos", STOP_ID: "stop_id"}.get(made[-1], "length")
    reason = request.status.finish_reason or ""
    return Result(
        finish_reason=reason,
        output_tokens=len(made),
        ended_by=ended_by if reason == "stop" else "length",
        tokens_after=len(words) - len(made),
        steps=engine.core.num_steps,
    )


class _Scripted:
    """A core engine for complete requests with their stopping rules."""

    def __init__(self, ctx: Context, max_model_len: int) -> None:
        self.core: CoreEngine = ctx.core(max_model_len=max_model_len)

    def start(self, request, words: list[int]) -> None:  # type: ignore[no-untyped-def]
        self.core.scheduler.add(request)
        self.core._scripts[request.request_id] = words
        self.core.outcomes[request.request_id] = Outcome(arrival=self.core.num_steps)
