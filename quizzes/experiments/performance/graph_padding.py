"""Recorded decode steps exist for some batch sizes only: a batch runs in the next larger one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Padding:
    sizes: Annotated[list[int], "rows"]
    """Of the graph that each batch runs in, in the order given."""
    padded_rows: Annotated[list[int], "rows"]
    graphs: Annotated[int, "graphs"]
    """Different ones that these batches need."""
    waste: Annotated[float, "share"]
    """Padding in all rows that were computed."""


@experiment("E26")
def graph_padding(
    ctx: Context,
    *,
    batches: Annotated[list[Annotated[int, Field(ge=1, le=512)]], Field(min_length=1, max_length=64)] = (
        1,
        3,
        9,
        17,
        30,
    ),
) -> Padding:
    """Which graph of this engine (`engine/worker/decode_graphs.py`) replays decode batches of these sizes."""
    from engine.worker.decode_graphs import graph_size

    sizes = [graph_size(rows) for rows in batches]
    padded = [size - rows for size, rows in zip(sizes, batches, strict=True)]
    return Padding(sizes, padded, len(set(sizes)), sum(padded) / sum(sizes))
