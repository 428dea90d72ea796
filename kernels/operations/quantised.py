"""Products with quantised weights, and with a matrix for each group of rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.bench.workloads import Calls, Maker, Recipe, Workload, of_recipes
from kernels.check.case import Case, dtype_name
from kernels.check.draw import NAN_ROW, Draw, Made
from kernels.check.invariance import Rows
from kernels.operation import Operation, Work, last_dimension

FP8 = torch.float8_e4m3fn


class _GroupedRows(Rows):
    """A row alone belongs to the same group."""

    def alone(self, case: Case, row: int) -> Case:
        x, weight, ends = case.args
        return Case(case.op, f"{case.name}: row {row} alone", (x[row : row + 1], weight, (ends > row).int()))


def _int4_linear_cases(draw: Draw) -> Made:
    def weight(width: int, out: int, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
        groups = width // group_size
        qweight = draw.integers(0, 256, out, width // 2, dtype=torch.uint8)
        scale = draw.uniform(0.01, 0.1, out, groups).to(draw.dtype)
        return qweight, scale, draw.integers(0, 16, out, groups, dtype=torch.uint8)

    large = (draw.pick(128, 512, 4096), draw.pick(64, 256, 1024), 128)
    for rows in (0, 1, 2, 8, 9, draw.pick(17, 33, 200)):
        for width, out, group_size in ((64, 40, 32), large, (96, 33, 96)):
            name = f"{rows} rows, {width} to {out}, groups of {group_size}"
            yield name, draw.strided(rows, width), *weight(width, out, group_size), group_size
    qweight, scale, zero = weight(64, 40, 32)
    for dtype in (torch.float16, torch.float32):
        yield f"scales in {dtype_name(dtype)}", draw.normal(3, 64), qweight, scale.to(dtype), zero, 32
    yield "fp32 results", draw.normal(3, 64), qweight, scale, zero, 32, torch.float32
    yield NAN_ROW, draw.normal(3, 64), qweight, scale.float(), zero, 32


def _int4_linear_workloads(maker: Maker) -> Iterator[Workload]:
    return (int4(maker, rows) for rows in _product_rows(maker))


def _product_rows(maker: Maker) -> tuple[int, ...]:
    return (1, 8, 64, 2048) if maker.gpu else (1, 32, 128)


def int4(maker: Maker, rows: int) -> Workload:
    """x [rows, hidden] times the up projection, 4 bits, groups of 128."""
    name, x, out, width = _product(maker, rows)
    qweight = maker.integers(0, 256, out, width // 2, dtype=torch.uint8)
    zero = maker.integers(0, 16, out, width // 128, dtype=torch.uint8)
    scale = maker.normal(out, width // 128, dtype=torch.bfloat16, scale=0.01)
    return of_recipes("int4_linear", name, x, qweight, scale, zero, 128)


INT4_LINEAR = Operation(
    "int4_linear",
    forms={
        "reference": "int4.py",
        "cpu": "int4.cpp int4.py",
        "triton": "int4.py split_k.py",
        "cuda": "int4_gemv.cu int4.py",
    },
    cases=_int4_linear_cases,
    work=lambda x, *weight: _quantised_linear(x, *weight[:3], rate=x.dtype),  # scales and zeros
    workloads=_int4_linear_workloads,
    rows=Rows("x"),
    terms=last_dimension,
    mutants=(
        ("high nibble first", "unpack_int4(qweight)", "unpack_int4((qweight >> 4) | (qweight << 4))"),
        (
            "zero points off by one",
            "- zero[..., None].to(torch.int16)",
            "- zero[..., None].to(torch.int16) - 1",
        ),
    ),
)


def _quantised_shapes(draw: Draw) -> Iterator[tuple[str, Tensor, int, int]]:
    """name, x, K, N"""
    for rows in (0, 1, 3, 8, 9, draw.pick(17, 33, 200)):
        for width, out in ((64, 40), (draw.pick(96, 512, 4096), draw.pick(33, 257, 1000))):
            yield f"{rows} rows, {width} to {out}", draw.strided(rows, width), width, out


def _special_rows(draw: Draw, qweight: Tensor, scale: Tensor) -> Made:
    x, qweight = draw.normal(3, 64), qweight[:, :64].contiguous()
    x[1] = 0
    yield "a row of zeros", x, qweight, scale
    yield NAN_ROW, draw.normal(3, 64), qweight, scale


def _int8_linear_cases(draw: Draw) -> Made:
    for name, x, width, out in _quantised_shapes(draw):
        qweight = draw.integers(-127, 128, out, width, dtype=torch.int8)
        scale = draw.uniform(0.001, 0.01, out)
        yield name, x, qweight, scale
    yield "fp32 results", draw.normal(3, qweight.shape[1]), qweight, scale, torch.float32
    yield from _special_rows(draw, qweight, scale)


def _int8_linear_workloads(maker: Maker) -> Calls:
    for rows in _product_rows(maker):
        name, x, out, width = _product(maker, rows)
        qweight = maker.integers(-127, 128, out, width, dtype=torch.int8)
        yield name, x, qweight, maker.uniform(0.001, 0.01, out)


def _product(maker: Maker, rows: int) -> tuple[str, Recipe, int, int]:
    """Return name, x bf16 [rows, K], N and K of a product with the up projection of the largest model."""
    width, out = maker.largest.hidden, maker.largest.intermediate
    return f"{width} to {out}, {rows} rows", maker.normal(rows, width, dtype=torch.bfloat16), out, width


INT8_LINEAR = Operation(
    "int8_linear",
    forms={"reference": "int8.py", "cpu": "int8.cpp int8.py", "triton": "int8.py w8a8.py split_k.py"},
    cases=_int8_linear_cases,
    work=lambda x, *weight: _quantised_linear(x, *weight[:2], rate=torch.int8),
    workloads=_int8_linear_workloads,
    rows=Rows("x"),
    open_for_nan=True,
    terms=last_dimension,
    mutants=(
        ("one scale for all rows", "rows.abs().amax(-1)", "rows.abs().amax(-1).amax().expand(len(rows))"),
        ("truncates", ".round().clamp", ".trunc().clamp"),
    ),
)


def _fp8_linear_cases(draw: Draw) -> Made:
    for name, x, width, out in _quantised_shapes(draw):
        qweight = (draw.normal(out, width).float() * 50).clamp(-448, 448).to(FP8)
        scale = draw.uniform(0.001, 0.01, out)
        yield f"{name}, dynamic", x, qweight, scale
        static = torch.tensor(0.005)  # the largest of normal numbers saturate
        yield f"{name}, static", x, qweight, scale, static
    yield from _special_rows(draw, qweight, scale)


def _fp8_linear_workloads(maker: Maker) -> Calls:
    for rows in _product_rows(maker):
        name, x, out, width = _product(maker, rows)
        yield name, x, maker.normal(out, width, dtype=FP8), maker.uniform(0.001, 0.01, out)


FP8_LINEAR = Operation(
    "fp8_linear",
    forms={"reference": "fp8.py", "triton": "fp8.py w8a8.py split_k.py"},
    cases=_fp8_linear_cases,
    work=lambda x, *weight: _quantised_linear(x, *weight[:2], rate=torch.float8_e4m3fn),
    workloads=_fp8_linear_workloads,
    rows=Rows("x"),
    open_for_nan=True,
    terms=last_dimension,
    mutants=(
        ("does not saturate at 448", "x.clamp(-FP8_MAX, FP8_MAX)", "x.clamp(-240.0, 240.0)"),
        ("no rounding", "rounded.double()", "(x / row_scale.clamp_min(1e-9)[:, None]).double()"),
    ),
)


def _grouped_linear_cases(draw: Draw) -> Made:
    for sizes in ([0, 0, 0], [1, 0, 0], [0, 3, 1], [draw.pick(17, 40, 300), 0, 2, 5]):
        width, out = draw.pick(64, 128, 1024), draw.pick(40, 100, 700)
        weight, ends = draw.normal(len(sizes), out, width), torch.tensor(sizes).cumsum(0).int()
        yield f"groups of {sizes}", draw.strided(sum(sizes), width), weight, ends
    yield NAN_ROW, draw.normal(4, 64), weight[:2, :, :64].contiguous(), torch.tensor([2, 4]).int()


def _grouped_linear_work(x: Tensor, weight: Tensor, group_ends: Tensor) -> Work:
    """Only matrices of groups that have rows are read."""
    groups = int((group_ends.diff(prepend=group_ends.new_zeros(1)) > 0).sum())
    return Work.of_product(x, weight.shape[1], groups * weight[0].nbytes, x.dtype)


def _grouped_linear_workloads(maker: Maker) -> Calls:
    width, out, groups = maker.largest.hidden, maker.largest.intermediate // 4, 8
    for rows in (32, maker.many // 4):
        ends = (torch.arange(1, groups + 1) * rows // groups).int().to(maker.device)
        name = f"{groups} experts, {width} to {out}, {rows} rows"
        yield name, maker.normal(rows, width), maker.normal(groups, out, width), ends


GROUPED_LINEAR = Operation(
    "grouped_linear",
    forms={"reference": "moe.py", "triton": "moe.py"},
    cases=_grouped_linear_cases,
    work=_grouped_linear_work,
    workloads=_grouped_linear_workloads,
    rows=_GroupedRows("x"),
    terms=last_dimension,
    mutants=(
        (
            "the last row of a group in the next",
            "enumerate(group_ends.tolist())",
            "enumerate([max(0, e - 1) for e in group_ends.tolist()[:-1]] + group_ends.tolist()[-1:])",
        ),
    ),
)


def _quantised_linear(x: Tensor, qweight: Tensor, *scales: Tensor, rate: torch.dtype) -> Work:
    return Work.of_product(x, qweight.shape[0], sum(tensor.nbytes for tensor in (qweight, *scales)), rate)
