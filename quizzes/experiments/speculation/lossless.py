"""E36: the shop model with and without drafts: the same tokens, fewer steps, the same first token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.speculation._shop import METHODS, Counted, prompts, run

Method = Literal["ngram", "draft_model", "eagle"]


@dataclass(frozen=True)
class Compared:
    """The same requests with and without drafts."""

    identical: bool
    """Token for token, all answers."""
    steps_without: Annotated[int, "steps"]
    steps_with: Annotated[int, "steps"]
    tokens: Annotated[int, "tokens"]
    tokens_per_step: Annotated[float, "tokens"]
    """Generated per step behind a request's first token, with drafts."""
    acceptance_rate: Annotated[float, "share"]
    accepted_by_place: Annotated[list[int], "drafts"]
    """How often the first draft of a row was right, the second, ..."""
    first_token_step_without: Annotated[int, "step"]
    first_token_step_with: Annotated[int, "step"]
    computed_without: Annotated[int, "positions"]
    computed_with: Annotated[int, "positions"]


@experiment("E36", seconds=40, megabytes=2500)
def lossless(
    ctx: Context,
    *,
    method: Method = "draft_model",
    workload: Literal["facts", "recommend", "tools", "free"] = "recommend",
    verifier: Literal["coupling", "rejection"] = "coupling",
    temperature: Annotated[float, Field(ge=0, le=5)] = 0.0,
    k: Annotated[int, Field(ge=1, le=8)] = 4,
    requests: Annotated[int, Field(ge=1, le=16)] = 4,
    max_tokens: Annotated[int, Field(ge=4, le=64)] = 32,
) -> Compared:
    """Answer prompts of a workload one at a time, plain and with drafts, and compare.

    coupling: both models use the noise of the position. rejection: the textbook's min(1, p / q).
    """
    questions = prompts(workload, requests)

    def answer(speculative: dict | None) -> Counted:
        with ctx.llm(max_num_seqs=16, speculative_config=speculative, traced=speculative is not None) as llm:
            return run(llm, questions, temperature=temperature, max_tokens=max_tokens, one_by_one=True)

    plain = answer(None)
    drafts = answer({**METHODS[method], "num_speculative_tokens": k, "verifier": verifier})
    return Compared(
        identical=plain.tokens == drafts.tokens,
        steps_without=plain.steps,
        steps_with=drafts.steps,
        tokens=sum(map(len, drafts.tokens)),
        tokens_per_step=(sum(map(len, drafts.tokens)) - requests) / max(1, drafts.decode_rows),
        acceptance_rate=drafts.accepted / drafts.drafted if drafts.drafted else 0.0,
        accepted_by_place=drafts.by_place,
        first_token_step_without=plain.first_token_step,
        first_token_step_with=drafts.first_token_step,
        computed_without=plain.computed,
        computed_with=drafts.computed,
    )
