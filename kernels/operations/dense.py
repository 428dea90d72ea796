"""Embedding, dense products, norms, rotation and activation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from kernels.bench.workloads import Calls, Maker, Model
from kernels.check.draw import NAN_ROW, Draw, Made
from kernels.check.invariance import Rows
from kernels.operation import Operation, Work, last_dimension


def _linear_cases(draw: Draw) -> Made:
    for rows in (*draw.rows, 17):
        width, out = draw.pick(64, 320, 1024), draw.pick(48, 200, 1000)
        weight, bias = draw.normal(out, width), draw.normal(out)
        yield f"{rows} rows", draw.normal(rows, width), weight, bias
        yield f"{rows} strided rows, no bias", draw.strided(rows, width), weight
        rounded = weight.bfloat16().to(draw.dtype)
        yield f"{rows} rows, weights of a bf16 checkpoint", draw.normal(rows, width), rounded, bias
        odd = draw.normal(rows, 65), draw.normal(out, 65)
        yield f"{rows} rows, odd depth, fp32 results", *odd, bias, torch.float32
    yield NAN_ROW, draw.normal(3, 64), draw.normal(40, 64)


def _linear_workloads(maker: Maker) -> Calls:
    for model in maker.models:
        for rows in (1, 32, maker.many):
            weight = maker.normal(2 * model.intermediate, model.hidden)
            yield f"{model.name} gate and up, {rows} rows", maker.normal(rows, model.hidden), weight


LINEAR = Operation(
    "linear",
    forms={"reference": "linear.py", "cpu": "gemm.cpp gemm_bf16.cpp linear.py"},
    cases=_linear_cases,
    work=lambda x, weight, bias=None, out_dtype=None: Work.of_product(
        x, weight.shape[0], weight.nbytes, x.dtype
    ),
    workloads=_linear_workloads,
    rows=Rows("x"),
    terms=last_dimension,
    mutants=(("the bias is forgotten", "F.linear(x, weight, bias)", "F.linear(x, weight)"),),
)


def _gated_linear_cases(draw: Draw) -> Made:
    for rows in (*draw.rows, 17):
        for size in (24, draw.pick(48, 160, 1000)):
            width = draw.pick(64, 320, 1024)
            weight, bias = draw.normal(2 * size, width) / 8, draw.normal(2 * size)
            yield f"{rows} rows, 2 x {size}", draw.normal(rows, width), weight, bias
            yield f"{rows} strided rows, 2 x {size}, no bias", draw.strided(rows, width), weight
        yield f"{rows} rows, odd sizes", draw.normal(rows, 65), draw.normal(2 * 33, 65) / 8
    yield NAN_ROW, draw.normal(3, 64), draw.normal(80, 64)


def _gated_linear_work(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Work:
    product = Work.of_product(x, weight.shape[0], weight.nbytes, x.dtype)
    return replace(product, written=product.written // 2)


GATED_LINEAR = Operation(
    "gated_linear",
    forms={"reference": "activation.py", "cpu": "gemm.h activation.h gated_linear.py"},
    cases=_gated_linear_cases,
    work=_gated_linear_work,
    workloads=_linear_workloads,
    rows=Rows("x"),
    terms=last_dimension,
    fuses=("linear", "silu_and_mul"),
    mutants=(("the bias is forgotten", "linear(x, weight, bias)", "linear(x, weight)"),),
)


def _rotation(
    draw: Draw, rows: int, heads: int, head_dim: int, turned: int
) -> tuple[Tensor, Tensor, int, int]:
    """turned: how many dimensions of a head are rotated."""
    angle = draw.uniform(0, 100, rows, turned // 2)
    return angle.cos(), angle.sin(), heads, head_dim


def _norm_linear_cases(draw: Draw) -> Made:
    """Products of few columns are cut into rows, blocks of them where there are many; wide ones into panels."""
    for rows in (*draw.rows, 17):
        width = draw.pick(64, 320, 1024)
        x, residual, norm = draw.strided(rows, width), draw.strided(rows, width), draw.normal(width)
        for columns in (40, draw.pick(200, 200, 1000)):
            weight, bias = draw.normal(columns, width) / 8, draw.normal(columns)
            yield f"{rows} rows, {columns} columns", x, residual, norm, 1e-5, weight, bias
            yield f"{rows} rows, 2 x {columns // 2}, activated", x, residual, norm, 1e-5, weight, bias, True
        for head_dim, turned in ((8, 8), (40, 40), (33, 20)):  # 8 heads, of which 6 are rotated
            weight, rotary = draw.normal(8 * head_dim, width) / 8, _rotation(draw, rows, 6, head_dim, turned)
            name = f"{rows} rows, {turned} of {head_dim} dimensions rotated"
            yield name, x, residual, norm, 1e-6, weight, draw.normal(8 * head_dim), False, rotary
            rounded = weight.bfloat16().to(draw.dtype)
            yield f"{name}, no residual, bf16 weights", x, None, norm, 1e-6, rounded, None, False, rotary
        odd = draw.normal(rows, 65), draw.normal(rows, 65), draw.normal(65)
        yield f"{rows} rows, odd depth", *odd, 1e-6, draw.normal(40, 65), None, True
    x, residual, norm = draw.normal(400, 64), draw.normal(400, 64), draw.normal(64)
    rotary = _rotation(draw, 400, 1, 16, 16)
    yield "400 rows, rotated", x, residual, norm, 1e-6, draw.normal(32, 64), None, False, rotary
    x, residual, norm = draw.normal(3, 64), draw.normal(3, 64), draw.normal(64)
    yield NAN_ROW, x, residual, norm, 1e-6, draw.normal(96, 64), None, False, _rotation(draw, 3, 2, 32, 32)


def _norm_linear_work(
    x: Tensor,
    residual: Tensor | None,
    norm_weight: Tensor,
    eps: float,
    weight: Tensor,
    bias: Tensor | None = None,
    activated: bool = False,
    rotary: tuple[Any, ...] | None = None,
) -> Work:
    """The product, and the residual stream in and out. Norm and rotation are not counted as FLOPs."""
    product = (
        _gated_linear_work(x, weight)
        if activated
        else Work.of_product(x, len(weight), weight.nbytes, x.dtype)
    )
    stream = 0 if residual is None else residual.nbytes
    angles = 0 if rotary is None else rotary[0].nbytes + rotary[1].nbytes
    return replace(product, read=product.read + stream + angles, written=product.written + stream)


def _norm_linear_workloads(maker: Maker) -> Calls:
    for model in maker.models:
        for rows in (1, 32, maker.many):
            yield from _norm_linears(maker, model, rows)


def _norm_linears(maker: Maker, model: Model, rows: int) -> Calls:
    heads, width = model.heads + 2 * model.kv_heads, model.hidden
    x, norm = maker.normal(rows, width), maker.normal(width)
    angles = maker.uniform(-1, 1, rows, model.head_dim // 2)

    def rotary() -> tuple[Tensor, Tensor, int, int]:
        return angles(), angles(), model.heads + model.kv_heads, model.head_dim

    weight = maker.normal(heads * model.head_dim, width)
    yield f"{model.name} q, k, v, {rows} rows", x, x, norm, 1e-5, weight, None, False, rotary
    weight = maker.normal(2 * model.intermediate, width)
    yield f"{model.name} gate and up, {rows} rows", x, x, norm, 1e-5, weight, None, True


NORM_LINEAR = Operation(
    "norm_linear",
    forms={"reference": "norm_linear.py", "cpu": "norm_gemm.h norm.h rotary.h gemm.h norm_linear.py"},
    cases=_norm_linear_cases,
    work=_norm_linear_work,
    workloads=_norm_linear_workloads,
    rows=Rows("x residual rotary"),
    terms=last_dimension,
    fuses=("rms_norm", "fused_add_rms_norm", "linear", "gated_linear", "silu_and_mul", "rotary_embedding"),
    mutants=(
        ("the product of the input", "linear(hidden, weight, bias)\n", "linear(x, weight, bias)\n"),
        ("the residual is not returned", "weight, eps), x\n", "weight, eps), x * 2\n"),
        ("the values get another sign", "(turned, rest), dim=1)", "(turned, -rest), dim=1)"),
    ),
)


def _embedding_cases(draw: Draw) -> Made:
    for rows in draw.rows:
        for size in (64, draw.pick(72, 896, 4096)):
            yield f"{rows} of 97 x {size}", draw.strided(97, size), draw.integers(0, 97, rows)
    yield NAN_ROW, draw.normal(5, 64), torch.tensor([4, 1, 0, 0])


def _embedding_work(table: Tensor, ids: Tensor) -> Work:
    moved = ids.numel() * table.shape[1] * table.element_size()
    return Work(moved + ids.nbytes, moved)


def _embedding_workloads(maker: Maker) -> Calls:
    for model in maker.models:
        table = maker.normal(model.vocabulary, model.hidden)()
        for rows in (32, maker.many):
            name = f"{rows} of {model.vocabulary} x {model.hidden}"
            yield name, table, maker.integers(0, model.vocabulary, rows)


EMBEDDING = Operation(
    "embedding",
    forms={"reference": "embedding.py", "cpu": "embedding.cpp embedding.py"},
    cases=_embedding_cases,
    work=_embedding_work,
    workloads=_embedding_workloads,
    rows=Rows("ids"),
    exact=True,
    mutants=(("the row before", "table[ids]", "table[ids - 1]"),),
)


def _norm_shapes(draw: Draw) -> Iterator[tuple[int, int]]:
    """rows, hidden"""
    return product(draw.rows, (64, draw.pick(80, 896, 4096), draw.pick(100, 1000, 5120)))


def _rms_norm_cases(draw: Draw) -> Made:
    for rows, hidden in _norm_shapes(draw):
        yield f"{rows} x {hidden}", draw.strided(rows, hidden), draw.normal(hidden), 1e-6
    for head_dim in (32, 80, 128):
        query, _ = draw.heads(3, head_dim, 4, 2)
        yield f"heads of {head_dim} in a fused qkv tensor", query, draw.normal(head_dim), 1e-5
    yield "fp32 rows, the weight's dtype", draw.normal(3, 64).float(), draw.normal(64), 1e-6
    yield "zeros", torch.zeros(2, 64, dtype=draw.dtype), draw.normal(64), 1e-6
    yield NAN_ROW, draw.normal(3, 96), draw.normal(96), 1e-6


def _rms_norm_workloads(maker: Maker) -> Calls:
    for model, rows in maker.sizes():
        width = model.hidden
        yield f"{rows} x {width}", maker.normal(rows, width), maker.normal(width), 1e-5


RMS_NORM = Operation(
    "rms_norm",
    forms={
        "reference": "norm.py",
        "cpu": "norm.cpp norm.h norm.py",
        "triton": "norm.py",
        "cuda": "norm.cu norm.py",
    },
    cases=_rms_norm_cases,
    work=lambda x, weight, eps: Work(x.nbytes + weight.nbytes, x.numel() * weight.element_size()),
    workloads=_rms_norm_workloads,
    rows=Rows("x"),
    terms=last_dimension,
    mutants=(
        ("eps is ten times as large", "keepdim=True) + eps", "keepdim=True) + eps * 1e5"),
        ("the input is overwritten", "x32 = wide(x)", "x32 = wide(x).mul_(1.0000001)"),
        ("rows share a mean", "mean(dim=-1, keepdim=True)", "mean()"),
    ),
)


def _fused_add_rms_norm_cases(draw: Draw) -> Made:
    for rows, hidden in _norm_shapes(draw):
        x, residual = draw.strided(rows, hidden), draw.strided(rows, hidden)
        yield f"{rows} x {hidden}", x, residual, draw.normal(hidden), 1e-6
    yield "residual in fp32", draw.normal(5, 64), draw.normal(5, 64).float(), draw.normal(64), 1e-6
    yield NAN_ROW, draw.normal(3, 96), draw.normal(3, 96), torch.ones(96, dtype=draw.dtype), 1e-6


def _fused_add_rms_norm_work(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Work:
    total = torch.result_type(x, residual).itemsize
    return Work(x.nbytes + residual.nbytes + weight.nbytes, x.numel() * (weight.element_size() + total))


def _fused_add_rms_norm_workloads(maker: Maker) -> Calls:
    for model, rows in maker.sizes():
        width = model.hidden
        x = maker.normal(rows, width)
        yield f"{rows} x {width}", x, x, maker.normal(width), 1e-5


FUSED_ADD_RMS_NORM = Operation(
    "fused_add_rms_norm",
    forms={
        "reference": "norm.py",
        "cpu": "norm.cpp norm.h norm.py",
        "triton": "norm.py",
        "cuda": "norm.cu norm.py",
    },
    cases=_fused_add_rms_norm_cases,
    work=_fused_add_rms_norm_work,
    workloads=_fused_add_rms_norm_workloads,
    rows=Rows("x residual"),
    terms=last_dimension,
    mutants=(
        ("the residual is added in place", "total = x + residual", "total = residual.add_(x)"),
        ("the sum is not returned", "weight, eps), total", "weight, eps), x"),
    ),
)


def _rotary_embedding_cases(draw: Draw) -> Made:
    for tokens in draw.rows:
        for head_dim, rotary_dim in ((32, 32), (64, 64), (80, 80), (128, 128), (64, 32), (80, 20)):
            heads = draw.pick(2, 4, 32), draw.pick(1, 2, 8)
            rotated, _ = draw.heads(tokens, head_dim, sum(heads), heads[1])  # q and k; v stays
            angle = draw.uniform(0, 100, tokens, rotary_dim // 2)
            name = f"{tokens} tokens, {rotary_dim} of {head_dim} dimensions"
            yield name, rotated, angle.cos(), angle.sin()
    x, angle = draw.normal(3, 2, 32), draw.uniform(0, 9, 3, 16)
    yield NAN_ROW, x, angle.cos(), angle.sin()


def _rotary_embedding_workloads(maker: Maker) -> Calls:
    for model, rows in maker.sizes():
        heads, head_dim = model.heads + model.kv_heads, model.head_dim  # of queries and keys
        fused = maker.normal(rows, heads + model.kv_heads, head_dim)
        angles = maker.uniform(-1, 1, rows, head_dim // 2)
        name = f"{rows} tokens, {heads} heads of {head_dim}"
        yield name, lambda fused=fused, heads=heads: fused()[:, :heads], angles, angles


ROTARY_EMBEDDING = Operation(
    "rotary_embedding",
    forms={"reference": "rotary.py", "cpu": "rotary.cpp rotary.h rotary.py", "triton": "rotary.py"},
    cases=_rotary_embedding_cases,
    work=lambda x, cos, sin: Work(x.nbytes + cos.nbytes + sin.nbytes, x.nbytes),
    workloads=_rotary_embedding_workloads,
    rows=Rows("x cos sin"),
    mutants=(
        ("turns the other way", "first * cos - second * sin", "first * cos + second * sin"),
        ("the rest is rotated away", "x[..., rotary_dim:]),", "x[..., rotary_dim:] * 0),"),
    ),
)


def _silu_and_mul_cases(draw: Draw) -> Made:
    for rows in draw.rows:
        for width in (64, draw.pick(72, 1000, 14336)):
            yield f"{rows} x {width}", draw.strided(rows, 2 * width).mul_(4)
    extreme = torch.tensor([[-200.0, -30.0, -0.0, 30.0], [1.0, 2.0, 3.0, 4.0]]).to(draw.dtype).repeat(1, 2)
    yield "gates where exp overflows", extreme
    yield NAN_ROW, draw.normal(3, 64)


def _silu_and_mul_workloads(maker: Maker) -> Calls:
    for model, rows in maker.sizes():
        yield f"{rows} x {model.intermediate}", maker.normal(rows, 2 * model.intermediate)


SILU_AND_MUL = Operation(
    "silu_and_mul",
    forms={"reference": "activation.py", "cpu": "activation.cpp activation.py", "triton": "activation.py"},
    cases=_silu_and_mul_cases,
    work=lambda x: Work(x.nbytes, x.nbytes // 2),
    workloads=_silu_and_mul_workloads,
    rows=Rows("x"),
    mutants=(("the halves are swapped", "F.silu(gate) * up", "F.silu(up) * gate"),),
)
