"""E36, E37: acceptance of an EAGLE head and of a separate draft model on the same prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from quizzes.experiments import Context, NeedsHardware, experiment
from quizzes.experiments.speculation._shop import METHODS, prompts, run


@dataclass(frozen=True)
class Drafters:
    """Accepted over drafted, greedy."""

    eagle_acceptance: Annotated[float, "share"]
    draft_acceptance: Annotated[float, "share"]
    eagle_tokens_per_step: Annotated[float, "tokens"]
    draft_tokens_per_step: Annotated[float, "tokens"]


@experiment("E36", "E37", seconds=60, megabytes=2500)
def eagle_vs_draft(
    ctx: Context,
    *,
    workload: Literal["facts", "recommend", "tools", "chat", "free"] = "chat",
    k: Annotated[int, Field(ge=1, le=8)] = 4,
    requests: Annotated[int, Field(ge=1, le=24)] = 8,
    max_tokens: Annotated[int, Field(ge=8, le=64)] = 32,
    device: Literal["auto", "cuda"] = "auto",
) -> Drafters:
    """Serve the same prompts with the shipped head and with the shipped draft model.

    Both were trained on the shop's conversations, the draft model as long as the target: a better draft than one buys.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise NeedsHardware("drafters are to be compared on a GPU, and there is none (CUDA)")
    found = {}
    for method in ("eagle", "draft_model"):
        speculative = {**METHODS[method], "num_speculative_tokens": k}
        with ctx.llm(max_num_seqs=32, speculative_config=speculative, device=device) as llm:
            counted = run(llm, prompts(workload, requests), temperature=0.0, max_tokens=max_tokens)
        decoded = sum(len(tokens) - 1 for tokens in counted.tokens)
        rate = counted.accepted / counted.drafted if counted.drafted else 0.0
        found[method] = rate, decoded / max(1, counted.decode_rows)
    return Drafters(
        eagle_acceptance=found["eagle"][0],
        draft_acceptance=found["draft_model"][0],
        eagle_tokens_per_step=found["eagle"][1],
        draft_tokens_per_step=found["draft_model"][1],
    )
