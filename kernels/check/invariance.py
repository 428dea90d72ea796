"""A row alone equals the row in the batch, bit for bit: cases of one row cut out of a larger case."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernels.attention_batch import AttentionBatch
from kernels.check.case import Case

ROW_DIMENSION: dict[str, dict[str, int]] = {
    "linear": {"x": 0},
    "embedding": {"ids": 0},
    "rms_norm": {"x": 0},
    "fused_add_rms_norm": {"x": 0, "residual": 0},
    "rotary_embedding": {"x": 0, "cos": 0, "sin": 0},
    "silu_and_mul": {"x": 0},
    "int4_linear": {"x": 0},
    "int8_linear": {"x": 0},
    "fp8_linear": {"x": 0},
    "grouped_linear": {"x": 0},
    "lora_shrink": {"x": 0, "token_adapter": 0},
    "lora_expand": {"shrunk": 1, "token_adapter": 0, "y": 0},
    "sample": {"logits": 0, "temperature": 0, "top_k": 0, "top_p": 0, "min_p": 0, "keys": 0},
    "apply_penalties": {
        "logits": 0,
        "in_prompt": 0,
        "output_counts": 0,
        "repetition": 0,
        "presence": 0,
        "frequency": 0,
    },
    "gather_logprobs": {"logits": 0, "token_ids": 0},
    "apply_token_bitmask": {"logits": 0, "bitmask": 0},
}
"""Arguments with rows, and the dimension of the rows."""

RESULT_DIMENSION = {"lora_shrink": 1}


def num_rows(case: Case) -> int:
    """Return the number of rows that can be computed alone; 0 for operations without rows or arithmetic."""
    arguments = case.arguments()
    if case.op == "paged_attention":
        return arguments["seq_lens"].shape[0]
    dimensions = ROW_DIMENSION.get(case.op, {})
    return min((arguments[name].shape[dimension] for name, dimension in dimensions.items()), default=0)


def alone(case: Case, row: int) -> Case:
    """Return the case with this row only."""
    arguments = dict(case.arguments())
    if case.op == "paged_attention":
        return _request_alone(case, row)
    for name, dimension in ROW_DIMENSION[case.op].items():
        arguments[name] = arguments[name].narrow(dimension, row, 1)
    if case.op == "grouped_linear":
        arguments["group_ends"] = (arguments["group_ends"] > row).int()
    return Case(case.op, f"{case.name}: row {row} alone", tuple(arguments.values()))


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
