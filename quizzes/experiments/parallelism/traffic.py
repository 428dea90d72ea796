"""E46: what the ranks of a real model say to each other in one step, in messages and bytes, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Said:
    """One step, as the rank that samples sees it."""

    all_reduces: Annotated[int, "calls"]
    """Of tensor parallel: attention's and the MLP's output of every layer, and the embedding's."""
    all_reduce_bytes: Annotated[int, "B"]
    """Payload of all of them."""
    bytes_per_token: Annotated[float, "B"]
    """Payload over the step's tokens; for pipeline stages the boundaries' bytes."""
    boundaries: Annotated[int, "sends"]
    """Between pipeline stages."""
    boundary_bytes: Annotated[int, "B"]
    """Of one crossing."""
    gather_bytes: Annotated[int, "B"]
    """One rank's part of the logits."""
    ms: Annotated[float, "ms"]
    """All of it over `link`, one after the other, nothing overlapped."""
    step_ms: Annotated[float, "ms"]
    """What the step's arithmetic and memory traffic take on these devices, by the cost model, messages left out."""
    share: Annotated[float, "share"]
    """ms / (ms + step_ms)."""


@experiment("E46")
def traffic(
    ctx: Context,
    *,
    model: str = "llama-3.1-70b",
    tp: Annotated[int, Field(ge=1, le=64)] = 8,
    pp: Annotated[int, Field(ge=1, le=16)] = 1,
    tokens: Annotated[int, Field(ge=1, le=65_536)] = 32,
    sampled: Annotated[int | None, Field(ge=0, le=65_536)] = None,
    link: str = "nvlink4",
    hardware: str = "h100",
    value_bytes: Annotated[int, Field(ge=1, le=4)] = 2,
) -> Said:
    """Count the messages of a step of `tokens` tokens. sampled: rows that get a token; None: all (a decode step)."""
    from engine.sim.cost import CostModel, StepLoad
    from engine.sim.hardware import get_hardware, get_link
    from engine.sim.interconnect import step_traffic
    from engine.sim.memory import Deployment
    from engine.sim.models import get_model

    shape = get_model(model)
    rows = tokens if sampled is None else sampled
    said = step_traffic(
        hidden_size=shape.hidden_size,
        num_layers=shape.num_layers,
        vocab_size=shape.vocab_size,
        value_bytes=value_bytes,
        num_tokens=tokens,
        num_sampled=rows,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
    )
    ms = 1e3 * said.seconds(get_link(link))
    cost = CostModel(Deployment(shape, get_hardware(hardware), tp=tp, pp=pp))
    load = StepLoad(rows, tokens, rows, decode_context=512 * rows)
    parts = cost.parts(load)
    step_ms = 1e3 * (sum(parts.values()) - parts["collectives"])
    payload = said.all_reduce_bytes if tp > 1 else said.num_boundaries * said.boundary_bytes
    return Said(
        all_reduces=said.num_all_reduces,
        all_reduce_bytes=said.all_reduce_bytes,
        bytes_per_token=payload / tokens,
        boundaries=said.num_boundaries,
        boundary_bytes=said.boundary_bytes,
        gather_bytes=said.gather_bytes,
        ms=ms,
        step_ms=step_ms,
        share=ms / (ms + step_ms) if ms else 0.0,
    )
