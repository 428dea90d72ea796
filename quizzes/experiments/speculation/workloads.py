"""E37: acceptance by drafter and workload, live: answers that copy, that choose, tool calls, and text out of domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.speculation._shop import METHODS, prompts, run

Workload = Literal["facts", "recommend", "tools", "chat", "free"]


@dataclass(frozen=True)
class ByWorkload:
    """One drafter on several workloads; lists are in their order."""

    workloads: list[str]
    acceptance_rate: Annotated[list[float], "share"]
    """Accepted drafts over drafted ones."""
    tokens_per_step: Annotated[list[float], "tokens"]
    """Per row and decode step, steps without drafts included."""
    drafted_share: Annotated[list[float], "share"]
    """Decode rows that had drafts at all."""
    best: str
    """Workload with the highest acceptance rate."""
    worst: str


@experiment("E37", seconds=60, megabytes=2500)
def workloads(
    ctx: Context,
    *,
    method: Literal["ngram", "draft_model", "eagle"] = "ngram",
    kinds: Annotated[list[Workload], Field(min_length=1, max_length=5)] = ("facts", "tools", "free"),
    k: Annotated[int, Field(ge=1, le=8)] = 4,
    requests: Annotated[int, Field(ge=1, le=24)] = 8,
    max_tokens: Annotated[int, Field(ge=8, le=64)] = 32,
    temperature: Annotated[float, Field(ge=0, le=5)] = 0.0,
) -> ByWorkload:
    """Serve each workload with drafts and count what was accepted."""
    rates, per_step, shares = [], [], []
    with ctx.llm(max_num_seqs=32, speculative_config={**METHODS[method], "num_speculative_tokens": k}) as llm:
        for kind in kinds:
            counted = run(
                llm,
                prompts(kind, requests),
                temperature=temperature,
                max_tokens=max_tokens,
                ignore_eos=kind == "free",
            )
            decoded = sum(len(tokens) - 1 for tokens in counted.tokens)
            rows = max(1, counted.decode_rows)
            rates.append(counted.accepted / counted.drafted if counted.drafted else 0.0)
            per_step.append(decoded / rows)
            shares.append(counted.rows / rows)
    order = sorted(zip(rates, kinds, strict=True))
    return ByWorkload(list(kinds), rates, per_step, shares, best=order[-1][1], worst=order[0][1])


def chart(result: ByWorkload) -> dict[str, Any]:
    """Tokens per step by workload; 1 is what decoding without drafts gives."""
    pairs = zip(result.workloads, result.tokens_per_step, strict=True)
    values = [{"workload": name, "tokens per step": value} for name, value in pairs]
    return {
        "data": {"values": values},
        "mark": "bar",
        "encoding": {
            "x": {"field": "workload", "type": "nominal", "sort": "-y"},
            "y": {"field": "tokens per step", "type": "quantitative"},
        },
    }
