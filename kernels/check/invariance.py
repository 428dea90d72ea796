"""A row alone equals the row in the batch, bit for bit: cases of one row cut out of a larger case."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.check.case import Case

ROWS = {
    **dict.fromkeys(
        ("linear", "gated_linear", "rms_norm", "silu_and_mul", "int4_linear", "int8_linear", "fp8_linear"),
        "x",
    ),
    "norm_linear": "x residual rotary",
    "embedding": "ids",
    "fused_add_rms_norm": "x residual",
    "rotary_embedding": "x cos sin",
    "grouped_linear": "x",
    "lora_shrink": "x token_adapter",
    "lora_expand": "shrunk token_adapter y",
    "sample": "logits temperature top_k top_p min_p keys",
    "apply_penalties": "logits in_prompt output_counts repetition presence frequency",
    "gather_logprobs": "logits token_ids",
    "apply_token_bitmask": "logits bitmask",
}
"""Arguments with rows. The rows are the first dimension, but for `shrunk`, where they are the second."""

RESULT_DIMENSION = {"lora_shrink": 1}


def num_rows(case: Case) -> int:
    """Return the number of rows that can be computed alone; 0 for operations without rows or arithmetic."""
    arguments = case.arguments()
    if case.op == "paged_attention":
        return arguments["seq_lens"].shape[0]
    names = ROWS.get(case.op, "").split()
    tensors = [(name, arguments[name]) for name in names if isinstance(arguments.get(name), Tensor)]
    return min((tensor.shape[1 if name == "shrunk" else 0] for name, tensor in tensors), default=0)


def alone(case: Case, row: int) -> Case:
    """Return the case with this row only."""
    arguments = dict(case.arguments())
    if case.op == "paged_attention":
        return _request_alone(case, row)
    for name in arguments.keys() & ROWS[case.op].split():
        arguments[name] = _narrowed(arguments[name], 1 if name == "shrunk" else 0, row)
    if case.op == "grouped_linear":
        arguments["group_ends"] = (arguments["group_ends"] > row).int()
    return Case(case.op, f"{case.name}: row {row} alone", tuple(arguments.values()))


def _narrowed(value: Any, dimension: int, row: int) -> Any:
    """The row of a tensor, of each tensor of a tuple; anything else has no rows."""
    if isinstance(value, tuple):
        return tuple(_narrowed(each, dimension, row) for each in value)
    return value.narrow(dimension, row, 1) if isinstance(value, Tensor) else value


def _request_alone(case: Case, row: int) -> Case:
    """Cut one request out. Alone it may be a decode batch: the other rows must not choose its kernel."""
    query, kv, batch = case.args
    starts, rows = batch.query_start_loc[row : row + 2], slice(row, row + 1)
    start, end = starts.tolist()
    most = None if batch.max_query_len is None else end - start
    own = AttentionBatch(starts - start, batch.seq_lens[rows], batch.block_table[rows], most)
    return Case(case.op, f"{case.name}: row {row} alone", (query[start:end], kv, own), case.kwargs)


def row_of(case: Case, row: int, result: Any) -> tuple[Tensor, ...]:
    """Return this row's part of the batch's result (for operations in place, of their target)."""
    tensors = result if isinstance(result, tuple) else (result,)
    if case.op == "paged_attention":
        start, end = case.args[2].query_start_loc[row : row + 2].tolist()
        return tuple(each[start:end] for each in tensors)
    return tuple(each.narrow(RESULT_DIMENSION.get(case.op, 0), row, 1) for each in tensors)


def equal_bits(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    """Compare bits; any NaN equals any other, since hardware and compilers choose the bits of a NaN."""
    pairs = list(zip(one, other, strict=True))
    return all(a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all()) for a, b in pairs)
