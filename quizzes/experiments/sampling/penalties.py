"""E39: what repetition, presence and frequency penalties do to the logits of tokens that were said before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment

TokenId = Annotated[int, Field(ge=0, le=999)]


@dataclass(frozen=True)
class Edited:
    """Logits behind the engine's penalty processor."""

    logits: Annotated[list[float], "logit"]
    change: Annotated[list[float], "logit"]
    """By token id: after minus before."""
    greedy_before: Annotated[int, "token id"]
    greedy_after: Annotated[int, "token id"]


@experiment("E39", megabytes=2000)
def penalties(
    ctx: Context,
    *,
    logits: Annotated[
        list[Annotated[float, Field(ge=-100, le=100)]], Field(min_length=2, max_length=1000)
    ] = (
        3.0,
        2.0,
        -1.0,
        0.5,
    ),
    prompt: Annotated[list[TokenId], Field(max_length=1000)] = (2,),
    output: Annotated[list[TokenId], Field(max_length=1000)] = (0, 0, 1),
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.2,
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.5,
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.5,
) -> Edited:
    """Apply the engine's penalties to one row of logits.

    prompt, output: token ids that were given and that were generated. Repetition looks at both, the other two at the
    output alone.
    """
    import numpy as np
    import torch

    from engine.core.sched_output import RequestInit
    from engine.sample.processors import Penalties, SampleBatch
    from engine.sampling_params import SamplingParams

    size = len(logits)
    said = [token % size for token in (*prompt, *output)]
    params = SamplingParams(
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
    )
    before = torch.tensor([list(logits)], dtype=torch.float32)
    after = before.clone()
    processor = Penalties(size, 1, torch.device("cpu"))
    if processor.add_request(0, RequestInit(said, len(prompt), params, frozenset(), 0)):
        table = np.array([said or [0]], np.int32)
        lengths = np.array([len(said)])
        batch = SampleBatch(np.zeros(1, np.int64), lengths, np.array([len(prompt)]), table)
        processor.apply(after, np.zeros(1, np.int64), batch)
    return Edited(
        logits=[round(value, 5) for value in after[0].tolist()],
        change=[round(value, 5) for value in (after - before)[0].tolist()],
        greedy_before=int(before.argmax()),
        greedy_after=int(after.argmax()),
    )
