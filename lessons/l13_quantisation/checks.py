"""Checks of lesson 13. The oracles compute in Python's floats, one weight at a time."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random
from typing import Any

import torch
from torch import Tensor

from lessons.course.checking import Failed, Learner, check, refused, smallest


def fp16(value: float) -> float:
    """Return the number that 16 bits store."""
    return float(struct.unpack("e", struct.pack("e", value))[0])


def matrices() -> Iterator[tuple[int, int, list[list[float]]]]:
    """Yield (bits, group_size, rows), small ones first."""
    yield 4, 2, [[0.5, -1.0]]
    yield 4, 2, [[0.5, -1.0, 3.0, 0.25], [0.0, 0.0, 1.0, -2.0]]
    rng = Random(13)
    for bits in (8, 4, 3, 2):
        for group in (4, 8):
            yield bits, group, [[round(rng.gauss(0, 1), 3) for _ in range(16)] for _ in range(2)]


def same_shape(name: str, found: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if not isinstance(found, Tensor):
        raise Failed(f"{name} is a {type(found).__name__}, expected a tensor")
    if tuple(found.shape) != shape or found.dtype != dtype:
        raise Failed(f"{name} is {found.dtype} {list(found.shape)}, expected {dtype} {list(shape)}")
    return found


def quantized(learner: Learner, rows: list[list[float]], bits: int, group: int) -> tuple[Tensor, Tensor]:
    q, scales = learner.call("quantize", torch.tensor(rows), bits, group)
    shape = (len(rows), len(rows[0]))
    return (
        same_shape("q", q, shape, torch.int8),
        same_shape("scales", scales, (shape[0], shape[1] // group), torch.float16),
    )


@check("13.1")
def scales_are_the_groups_own(learner: Learner) -> None:
    """A scale is the largest |weight| of its group over the largest step, rounded to fp16."""

    def run(case: tuple[int, int, list[list[float]]]) -> None:
        bits, group, rows = case
        _, scales = quantized(learner, rows, bits, group)
        for row, values in enumerate(rows):
            for index in range(len(values) // group):
                largest = max(abs(value) for value in values[index * group : (index + 1) * group])
                expected = fp16(largest / (2 ** (bits - 1) - 1)) or 1.0
                found = float(scales[row, index])
                if abs(found - expected) > 1e-3 * expected:
                    raise Failed(f"scale of row {row}, group {index} is {found:.5f}, expected {expected:.5f}")

    smallest(matrices(), run)


@check("13.1")
def steps_are_the_nearest(learner: Learner) -> None:
    """No other step of the grid is nearer to a weight than the chosen one."""

    def run(case: tuple[int, int, list[list[float]]]) -> None:
        bits, group, rows = case
        q, scales = quantized(learner, rows, bits, group)
        largest = 2 ** (bits - 1) - 1
        for row, values in enumerate(rows):
            for column, value in enumerate(values):
                step, scale = int(q[row, column]), float(scales[row, column // group])
                if abs(step) > largest:
                    raise Failed(f"q is {step}, but {bits} bits go from {-largest} to {largest}")
                best = min(abs(other * scale - value) for other in range(-largest, largest + 1))
                if abs(step * scale - value) > best + 1e-5 * scale:
                    raise Failed(f"weight {value} became {step} x {scale:.5f}; a nearer step exists")

    smallest(matrices(), run)


@check("13.1")
def steps_fit_the_stored_scale(learner: Learner) -> None:
    """The steps are chosen for the scale as fp16 stores it."""
    rng = Random(5)
    rows = [[rng.uniform(-1, 1) for _ in range(256)] for _ in range(64)]
    q, scales = quantized(learner, rows, 8, 64)
    stored = scales.double().repeat_interleave(64, dim=1)
    exact = torch.tensor(rows).double()
    expected = (exact / stored).round().clamp(-127, 127)
    off = int((expected != q.double()).sum())
    if off > 4:  # ties in fp32
        raise Failed(f"{off} of {q.numel()} steps are not the nearest ones for the stored scales")


@check("13.1")
def a_group_of_zeros_stays_zero(learner: Learner) -> None:
    """A group of zeros gives q = 0 and scale 1, and no NaN."""
    q, scales = quantized(learner, [[0.0, 0.0, 0.0, 0.0, 1.0, -1.0, 0.5, 0.0]], 4, 4)
    if q[0, :4].any() or not torch.isfinite(scales).all() or float(scales[0, 0]) != 1.0:
        raise Failed(f"q {q[0, :4].tolist()} and scale {float(scales[0, 0])} for a group of four zeros")


@check("13.1")
def dequantize_restores(learner: Learner) -> None:
    """dequantize returns q times the scale of its group, fp32, for q and scales of any origin."""
    for group, columns in ((2, 4), (3, 6), (4, 4)):
        q = torch.arange(2 * columns, dtype=torch.int8).reshape(2, columns) - 5
        scales = torch.arange(1, 2 * (columns // group) + 1).reshape(2, -1).half() / 8
        found = same_shape(
            "the result", learner.call("dequantize", q, scales, group), (2, columns), torch.float32
        )
        for row in range(2):
            for column in range(columns):
                expected = int(q[row, column]) * float(scales[row, column // group])
                if float(found[row, column]) != expected:
                    raise Failed(
                        f"element [{row}, {column}] is {float(found[row, column])}, expected {expected}",
                        example=f"q {q.tolist()}, scales {scales.tolist()}, group_size {group}",
                    )


@check("13.1")
def error_is_at_most_half_a_step(learner: Learner) -> None:
    """After the round trip no weight is further away than half a step (and the rounding of its scale)."""
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(1)) * 0.02
    for bits in (8, 4):
        q, scales = learner.call("quantize", weight, bits, 32)
        restored = learner.call("dequantize", q, scales, 32)
        limit = scales.float().repeat_interleave(32, dim=1) * (0.5 + 2 ** (bits - 1) / 1024)
        if not bool(((restored - weight).abs() <= limit).all()):
            worst = float(((restored - weight).abs() / limit).max())
            raise Failed(f"{bits} bits: an error is {worst:.2f} times the bound")


@check("13.1")
def impossible_sizes_are_refused(learner: Learner) -> None:
    """bits outside 2 to 8, and groups that do not divide the row, raise ValueError."""
    for bits, group in ((1, 4), (9, 4), (4, 3), (4, 0)):
        case = f"quantize(weight [2, 8], {bits}, {group})"
        refused(case, learner.call, "quantize", torch.ones(2, 8), bits, group)


def int4_rows() -> Iterator[list[list[int]]]:
    yield [[0, 0]]
    yield [[1, -1]]
    yield [[-8, 7], [7, -8]]
    yield [[0, 0, 1, 0], [0, 0, 0, -7]]
    rng = Random(2)
    yield [[rng.randint(-8, 7) for _ in range(16)] for _ in range(3)]


@check("13.2")
def bytes_hold_two_values(learner: Learner) -> None:
    """Column 2j lies in the low four bits of byte j, column 2j + 1 in the high ones, each plus 8."""

    def run(rows: list[list[int]]) -> None:
        packed = learner.call("pack_int4", torch.tensor(rows, dtype=torch.int8))
        same_shape("the result", packed, (len(rows), len(rows[0]) // 2), torch.uint8)
        for row, values in enumerate(rows):
            for index in range(len(values) // 2):
                expected = (values[2 * index] + 8) + 16 * (values[2 * index + 1] + 8)
                if int(packed[row, index]) != expected:
                    raise Failed(f"byte [{row}, {index}] is {int(packed[row, index])}, expected {expected}")

    smallest(int4_rows(), run)


@check("13.2")
def unpack_reads_the_layout(learner: Learner) -> None:
    """unpack_int4 reads bytes that another program packed."""

    def run(rows: list[list[int]]) -> None:
        packed = [[a + 8 + 16 * (b + 8) for a, b in zip(row[::2], row[1::2], strict=True)] for row in rows]
        found = learner.call("unpack_int4", torch.tensor(packed, dtype=torch.uint8))
        same_shape("the result", found, (len(rows), len(rows[0])), torch.int8)
        if found.tolist() != rows:
            raise Failed(f"returned {found.tolist()}, expected {rows}")

    smallest(int4_rows(), run)


@check("13.2")
def the_round_trip_is_exact(learner: Learner) -> None:
    """Unpacking what was packed returns all 256 pairs of values."""
    pairs = [[a, b] for a in range(-8, 8) for b in range(-8, 8)]
    q = torch.tensor(pairs, dtype=torch.int8)
    found = learner.call("unpack_int4", learner.call("pack_int4", q))
    for pair, other in zip(pairs, found.tolist(), strict=True):
        if pair != other:
            raise Failed(f"returned {other}", example=pair)


@check("13.2")
def the_argument_is_not_changed(learner: Learner) -> None:
    """Packing leaves its argument as it is."""
    before = [[-8, 7, 3, -2]]
    kept = learner.put(torch.tensor(before, dtype=torch.int8))
    learner.call("pack_int4", kept)
    if (after := kept.tolist()) != before:
        raise Failed(f"the argument became {after}", example=f"q = {before}; pack_int4(q); q")


@check("13.2")
def odd_columns_are_refused(learner: Learner) -> None:
    """An odd number of columns raises ValueError."""
    refused("[2, 3]", learner.call, "pack_int4", torch.zeros(2, 3, dtype=torch.int8))


def kv(tokens: int, heads: int, dim: int, seed: int = 0) -> Tensor:
    x = torch.randn(tokens, heads, dim, generator=torch.Generator().manual_seed(seed))
    x[0] *= 30
    x[:, 0] *= 4
    return x


@check("13.3")
def every_token_and_head_has_a_scale(learner: Learner) -> None:
    """scales[t, h] is max|x| / 127 over the numbers of token t and head h alone."""

    def run(shape: tuple[int, int, int]) -> None:
        x = kv(*shape)
        q, scales = learner.call("quantize_kv", x)
        same_shape("q", q, shape, torch.int8)
        same_shape("scales", scales, shape[:2], torch.float32)
        for token in range(shape[0]):
            for head in range(shape[1]):
                expected = max(abs(value) for value in x[token, head].tolist()) / 127
                if abs(float(scales[token, head]) - expected) > 1e-6 * expected:
                    found = float(scales[token, head])
                    raise Failed(
                        f"scale of token {token}, head {head} is {found:.6f}, expected {expected:.6f}"
                    )

    smallest([(1, 1, 4), (2, 1, 4), (2, 3, 4), (5, 4, 32)], run)


@check("13.3")
def kv_error_is_at_most_half_a_step(learner: Learner) -> None:
    """q times the scale is at most half a step away from x."""
    x = kv(6, 4, 32)
    q, scales = learner.call("quantize_kv", x)
    steps = (q.double() * scales.double()[..., None] - x.double()).abs() / scales.double()[..., None]
    if not float(steps.max()) <= 0.501:
        raise Failed(f"the largest error is {float(steps.max()):.2f} steps")


@check("13.3")
def zeros_stay_zero(learner: Learner) -> None:
    """A head of zeros gives zeros; a cache is zeroed when it is allocated."""
    x = kv(2, 2, 4)
    x[1, 1] = 0
    q, scales = learner.call("quantize_kv", x)
    if q[1, 1].any() or float(scales[1, 1]) != 0.0:
        raise Failed(f"q {q[1, 1].tolist()}, scale {float(scales[1, 1])} for four zeros, expected zeros")


@check("13.3")
def a_loud_token_disturbs_no_other(learner: Learner) -> None:
    """Making one token 1,000 times larger changes no step of the others."""
    x = kv(4, 2, 8)
    before, _ = learner.call("quantize_kv", x)
    loud = x.clone()
    loud[2] *= 1000
    after, _ = learner.call("quantize_kv", loud)
    for token in (0, 1, 3):
        if not torch.equal(before[token], after[token]):
            raise Failed(f"the steps of token {token} changed when token 2 became larger")


@check("13.3")
def bytes_count_the_scales(learner: Learner) -> None:
    """kv_bytes_per_token counts keys, values and an fp32 scale for each head of each."""

    def run(shape: tuple[int, int, int]) -> None:
        layers, heads, dim = shape
        expected = sum(dim * 1 + 4 for _layer in range(layers) for _kind in "kv" for _head in range(heads))
        found = learner.call("kv_bytes_per_token", layers, heads, dim)
        if type(found) is not int or found != expected:
            raise Failed(f"returned {found!r}, expected {expected}")

    smallest([(1, 1, 1), (1, 2, 8), (6, 4, 32), (80, 8, 128)], run)
