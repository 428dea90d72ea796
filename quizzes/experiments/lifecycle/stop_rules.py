"""E66: end-of-sequence, stop ids, min_tokens, max_tokens, the model's length: which of them ends a request first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, CoreEngine, experiment
from quizzes.experiments.core_engine import Outcome

EOS, STOP_ID, WORD = 2, 77, 5


@dataclass(frozen=True)
class Ending:
    """How one scripted answer ended."""

    finish_reason: str
    """stop or length."""
    output_tokens: Annotated[int, "tokens"]
    """The token that ended it included."""
    ended_by: str
    """eos, stop_id or length."""
    tokens_after: Annotated[int, "tokens"]
    """Of the script, never generated."""
    steps: Annotated[int, "steps"]


@experiment("E66")
def stop_rules(
    ctx: Context,
    *,
    prompt: Annotated[int, Field(ge=1, le=1000)] = 20,
    script: Annotated[int, Field(ge=1, le=400)] = 60,
    eos_at: Annotated[int, Field(ge=0, le=400)] = 12,
    stop_id_at: Annotated[int, Field(ge=0, le=400)] = 0,
    max_tokens: Annotated[int, Field(ge=1, le=400)] = 40,
    min_tokens: Annotated[int, Field(ge=0, le=400)] = 0,
    ignore_eos: bool = False,
    max_model_len: Annotated[int, Field(ge=2, le=4000)] = 2000,
) -> Ending:
    """The model says `script` words; its token number `eos_at` (from 1) is end-of-sequence, number `stop_id_at` a stop
    id; 0: there is none. `min_tokens` is capped by max_tokens.
    """
    from engine.core.request import Request
    from engine.sampling_params import SamplingParams

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
    return Ending(
        finish_reason=reason,
        output_tokens=len(made),
        ended_by=ended_by if reason == "stop" else "length",
        tokens_after=len(words) - len(made),
        steps=engine.core.num_steps,
    )


class _Scripted:
    """A core engine that takes whole requests, with their stopping rules."""

    def __init__(self, ctx: Context, max_model_len: int) -> None:
        self.core: CoreEngine = ctx.core(max_model_len=max_model_len)

    def start(self, request, words: list[int]) -> None:  # type: ignore[no-untyped-def]
        self.core.scheduler.add(request)
        self.core._scripts[request.request_id] = words
        self.core.outcomes[request.request_id] = Outcome(arrival=self.core.num_steps)
