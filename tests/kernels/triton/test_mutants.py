"""Faults put into the kernels: each must be noticed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from kernels.check.run import check
from tests.kernels.triton.mutants import assert_noticed, faulty
from tests.kernels.triton.rows import expected, inputs_of

LAYERS = [
    ("rms_norm", "norm.py", "/ hidden + eps", "/ BLOCK + eps", "100"),
    ("rms_norm", "norm.py", "row // inner * x_outer_stride", "row // inner * inner * hidden", "heads of 80"),
    ("fused_add_rms_norm", "norm.py", "row * residual_row_stride", "row * x_row_stride * 2", "3 x 64"),
    (
        "rotary_embedding",
        "rotary.py",
        "first * c - second * s",
        "first * c + second * s",
        "3 tokens, 32 of 32",
    ),
    ("rotary_embedding", "rotary.py", "if 2 * HALF < HEAD_DIM:", "if HALF < 0:", "3 tokens, 32 of 64"),
    ("silu_and_mul", "activation.py", "+ n + column", "+ column", "3 x 64"),
    ("reshape_and_cache", "kv_write.py", "if slot < 0:", "if slot < -1:", "5 tokens into fp32"),
    (
        "reshape_and_cache",
        "kv_write.py",
        "slot % BLOCK_SIZE",
        "(slot + 1) % BLOCK_SIZE",
        "1 tokens into fp32",
    ),
    ("reshape_and_cache", "kv_write.py", "tl.load(kv_scale + part)", "tl.load(kv_scale)", "into fp8"),
    ("reshape_and_cache", "kv_write.py", "127.0", "128.0", "into int8"),
    ("copy_blocks", "copy.py", "2 * pair + 1", "2 * pair", "1 blocks of int8 to another"),
    ("copy_blocks", "copy.py", "byte < block_bytes", "byte < block_bytes - 1", "1 blocks of int8 to another"),
]

FAULTS: dict[tuple[str, str, str | None], dict[str, tuple[str, str]]] = {
    ("apply_token_bitmask", "bitmask.py", "3 x 77"): {
        "bits from the other end": ("token % 32)", "31 - token % 32)"),
        "the words of row 0": ("row * bitmask_stride", "0 * bitmask_stride"),
        "allowed tokens are forbidden": ("allowed == 0", "allowed == 1"),
        "half of the tile": ("token < vocab_size", "token < vocab_size // 2"),
    },
    ("apply_penalties", "penalties.py", "3 x 77"): {
        "negative logits are divided too": ("values > 0, tl.div_rn", "values < 9e9, tl.div_rn"),
        "the prompt is forgotten": ("(count > 0) | (prompted != 0)", "count > 0"),
        "presence as often as the token": ("tl.where(count > 0, presence, 0.0)", "presence * count"),
        "frequency once": ("values -= frequency * count", "values -= frequency * (count > 0)"),
        "a row returns early": ("(repetition == 1) & (presence", "(repetition > 1) | (presence"),
    },
    ("int4_linear", "int4.py", "9 rows"): {
        "the nibbles of a byte are swapped": ("packed & 15, group_zero", "packed >> 4, group_zero"),
        "even columns meet high nibbles": ("even, odd = tl.split", "odd, even = tl.split"),
        "the zero point is forgotten": ("return nibble - zero", "return nibble - 1024"),
        "the next group's scale": ("n * scale_stride + group,", "n * scale_stride + group // 2,"),
        "a scale for each step instead of each group": ("group = k // GROUP_SIZE", "group = k // BLOCK_K"),
    },
    ("grouped_linear", "moe.py", None): {
        "the matrix of another group": ("group.to(tl.int64) * group_stride", "(group % 2) * group_stride"),
        "pairs of rows are one": ("x + t[:, None] * x_stride", "x + (t - t % 2)[:, None] * x_stride"),
        "the weights of a column later": ("n[:, None] * weight_stride", "(n ^ 1)[:, None] * weight_stride"),
    },
    ("gather_logprobs", "logprobs.py", "3 x 77"): {
        "ranks count from 0": (".to(tl.int64) + 1)", ".to(tl.int64))"),
        "lanes are joined without their peaks": ("rescaled(total, peak, highest)", "total"),
    },
    ("gather_logprobs", "logprobs.py", "many ties"): {
        "equal logits push down": ("values > chosen", "values >= chosen"),
    },
    ("fp8_linear", "fp8.py", "9 rows"): {
        "scaled to 256": ("k, E4M3_MAX, BLOCK", "k, 256.0, BLOCK"),
    },
    ("fp8_linear", "w8a8.py", "9 rows"): {
        "the column's scale is forgotten": ("* tl.load(scale + n, mask=n_inside, other=0)[:, None]", ""),
    },
    ("fp8_linear", "quantise.py", "9 rows"): {
        "nothing saturates": (
            "tl.minimum(tl.maximum(x, -E4M3_MAX), E4M3_MAX)",
            "tl.minimum(tl.maximum(x, -480.0), 480.0)",
        ),
    },
    ("int8_linear", "int8.py", "3 rows"): {
        "scaled to 128": ("k, 127.0, BLOCK", "k, 128.0, BLOCK"),
        "cut off instead of rounded": ("round_half_even(tl.div_rn(values, step))", "tl.div_rn(values, step)"),
    },
    ("int8_linear", "w8a8.py", "3 rows"): {
        "the row's scale is forgotten": ("total.to(tl.float32) * row_scales *", "total.to(tl.float32) *"),
    },
    ("lora_shrink", "lora.py", None): {
        "unwritten memory is added": ("mask=r < written", "mask=r < rank"),
        "the first slice's matrices for all": ("lora_a + part_of * slice_stride", "lora_a"),
    },
    ("lora_expand", "lora.py", None): {
        "the scaling of adapter 0": ("tl.load(scaling + adapter)", "tl.load(scaling)"),
        "slices start at column 0": ("(first_column + n)[:, None]", "n[:, None]"),
        "set instead of added": ("new = old + ", "new = "),
    },
}
"""(operation, file, case): fault: the right text and the wrong one."""

DECODE = "decode 5 rows, 8/1 heads of 64"  # with a window of 1
MIXED = "mixed 5 rows, 4/1 heads of 128"  # with a window of 17
PREFILL = "prefill 3 rows, 2/2 heads of 32"
ATTENTION = [
    ("paged_tile.py", "position % BLOCK_SIZE", "(position + 1) % BLOCK_SIZE", DECODE),
    ("paged_tile.py", "inside = readable[:, None] &", "inside = (position >= 0)[:, None] &", DECODE),
    ("paged_tile.py", '"ieee") * score_scale', '"ieee")', PREFILL),
    ("paged_tile.py", "<= query_position[:, None])", "<= query_position[:, None] + 1)", PREFILL),
    ("paged_tile.py", "query_position[:, None] - WINDOW", "query_position[:, None] - WINDOW - 1", MIXED),
    ("paged_tile.py", "tl.load(scales + scale_part_stride,", "tl.load(scales,", "int8 pages of 16"),
    (
        "unified_attention.py",
        "position = context + query_index",
        "position = context + 1 + query_index",
        PREFILL,
    ),
    (
        "unified_attention.py",
        "kv_head * GROUP + tile_row % GROUP",
        "kv_head + tile_row % GROUP",
        "heads of 80",
    ),
    ("unified_attention.py", "// BLOCK_Q - row)", "// BLOCK_Q - row + 1)", PREFILL),
    ("split_kv_decode.py", "kv_scale + 1)", "kv_scale)", "fp8 pages of 16"),
]


@pytest.mark.parametrize(
    ("op", "file", "only", "right", "wrong"),
    [
        pytest.param(*place, *texts, id=f"{place[0]}: {fault}")
        for place, faults in FAULTS.items()
        for fault, texts in faults.items()
    ],
)
def test_a_fault_in_a_product_or_in_logits_is_noticed(
    op: str, file: str, only: str | None, right: str, wrong: str, tmp_path: Path
) -> None:
    assert_noticed(op, file, right, wrong, tmp_path, only)


@pytest.mark.parametrize(("op", "file", "right", "wrong", "only"), LAYERS)
def test_a_fault_in_a_layer_or_the_cache_is_noticed(
    op: str, file: str, right: str, wrong: str, only: str, tmp_path: Path
) -> None:
    assert_noticed(op, file, right, wrong, tmp_path, only)


@pytest.mark.parametrize(("file", "right", "wrong", "only"), ATTENTION)
def test_a_fault_in_attention_is_noticed(
    file: str, right: str, wrong: str, only: str, tmp_path: Path
) -> None:
    assert_noticed("paged_attention", file, right, wrong, tmp_path, only)


def test_a_fault_in_adding_up_splits_is_noticed(tmp_path: Path) -> None:
    function = faulty("paged_attention", "split_kv_decode.py", "weight[:, None] * acc", "acc", tmp_path)
    sys.modules[function.__module__.replace("attention", "split_kv_decode")].SPLIT = 32
    report = check("paged_attention", function, only="decode 5 rows, 2/2 heads of 32*")
    assert report.failures


@pytest.mark.parametrize(
    ("right", "wrong", "window"),
    [
        ("acc * shrink[:, None]", "acc", None),
        ("total * shrink +", "total +", None),
        ('tl.where(new_highest == float("-inf"), 0.0, new_highest)', "new_highest", 1),
    ],
)
def test_a_fault_in_the_running_softmax_is_noticed(
    right: str, wrong: str, window: int | None, tmp_path: Path
) -> None:
    """Positions 119 to 135 lie in two tiles of any size; with a window of 1 the last see nothing of the first."""
    function = faulty("paged_attention", "paged_tile.py", right, wrong, tmp_path)
    inputs = inputs_of([17], [136])
    got = function(*inputs, scale=0.2, sliding_window=window)
    wanted = expected(inputs, scale=0.2, sliding_window=window)
    assert not torch.allclose(got.double(), wanted, rtol=1e-3, atol=1e-3)
