"""The worker's input for one request at one step, taken from the trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from app.debugger.kernel_walk.table import Table
from engine.trace.protocol import Trace
from prep_common.text import counted

LOADING_ARGS = (
    "model", "dtype", "seed", "max_model_len", "load_format", "hf_overrides", "revision", "download_dir",
    "block_size", "kv_cache_dtype", "quantization", "enable_lora", "max_loras", "max_lora_rank", "lora_dtype",
)  # fmt: skip
"""The run's `EngineArgs` on which the keys and values depend."""


class NoModel(ValueError):
    """The tensors of this trace cannot be computed; the message says why."""


@dataclass(frozen=True)
class Question:
    """A question to the worker, sent as JSON."""

    args: dict[str, Any]
    fingerprint: str
    """Fingerprint of the run's weights."""
    tokens: list[int]
    """Prompt and output up to the query's own token."""
    table: list[int]
    row_start: int
    """First position that the step computed; the query is between it and the last one."""
    lora: str | None
    """Path or name of the adapter."""
    layer: int = 0
    head: int = 0
    position: int = -1
    """Position of the query; -1: the last token."""
    notes: list[str] = field(default_factory=list)
    """Sentences about what is not exact in the answer."""


def make_question(
    reader: Trace, table: Table, *, layer: int = 0, head: int = 0, position: int = -1
) -> Question:
    """Make the question. Raises NoModel if the trace does not suffice."""
    header = reader.header
    args = header.get("config", {}).get("args") or {}
    model = header.get("model")
    if not model or not args:
        raise NoModel(
            "The trace names no model: it was recorded from a scheduler without one (a test, the simulator). Keys and "
            "values never existed, so there are no scores to show; pages, block ids and bytes are exact."
        )
    history = reader.find(table.request_id, table.step)
    outputs = history.tokens[: history.num_outputs_at(table.step)].tolist()
    tokens = [*history.record["prompt"], *outputs][: table.seq_len]
    if len(tokens) < table.seq_len:
        raise NoModel(
            f"The trace holds {counted(len(tokens), 'token')} of {table.request_id}, and {table.seq_len} were "
            "computed: drafts were not verified yet."
        )
    lora = history.record.get("lora")
    notes = []
    if args.get("limit_mm_per_prompt"):
        notes.append("A trace holds no images: their placeholders are computed as ordinary tokens.")
    if (size := args.get("tensor_parallel_size") or 1) > 1:
        notes.append(f"The run had {size} tensor ranks; here one process computes all heads.")
    return Question(
        args={name: args[name] for name in LOADING_ARGS if args.get(name) is not None},
        fingerprint=header.get("fingerprint") or "",
        tokens=tokens,
        table=[page.block_id for page in table.pages][: -(-table.seq_len // table.block_size)],
        row_start=table.seq_len - 1 if table.row_start is None else min(table.row_start, table.seq_len - 1),
        lora=lora.split("|")[1] if lora else None,
        layer=layer,
        head=head,
        position=position,
        notes=notes,
    )
