"""The checks notice a wrong CUDA kernel: one change to its source at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.check.run import check
from kernels.cuda import attention
from kernels.cuda import compile as nvrtc
from kernels.cuda.shim import build as shim
from tests.kernels.cuda_sources import copy_sources

pytestmark = pytest.mark.skipif(shim.problem() is not None, reason=str(shim.problem()))


def decode(*args: Any, max_query_len: int | None = None, **kwargs: Any) -> Tensor:
    return attention.decode_one_pass(*args, **kwargs)


def decode_split(*args: Any, max_query_len: int | None = None, **kwargs: Any) -> Tensor:
    return attention.decode_split(*args, **kwargs, split=16)


DECODE = "decode 5 rows, 8/2 heads of 64*"
LONG = "decode 2 rows*bf16*"
LONG_FP8 = "decode 2 rows*fp8*"
MUTANTS = {
    "the next slot of the page": (
        *(decode, "paged_fma.cuh", DECODE),
        *("BLOCK_SIZE + token % BLOCK_SIZE", "BLOCK_SIZE + (token + 1) % BLOCK_SIZE"),
    ),
    "always the first page": (
        *(decode, "paged_fma.cuh", DECODE),
        *("table_row[token / BLOCK_SIZE]", "table_row[0]"),
    ),
    "no mask behind the last token": (
        *(decode, "paged_fma.cuh", DECODE),
        *("score[u][g] = NOTHING;", "score[u][g] += 0;"),
    ),
    "scores without log2(e)": (
        *(decode, "paged_problem.cuh", DECODE),
        *("p.scale * LOG2_E", "p.scale"),
    ),
    "one token too many in the window": (
        *(decode, "paged_problem.cuh", DECODE),
        *("? seq_len - p.window :", "? seq_len - p.window - 1 :"),
    ),
    "the accumulator is not rescaled": (
        *(decode, "paged_fma.cuh", DECODE),
        *("state.acc[g][i] *= rescale;", ""),
    ),
    "a step is read before it arrived": (
        *(decode, "paged_fma.cuh", DECODE),
        *("wait_copies<STAGES - 1>", "wait_copies<STAGES>"),
    ),
    "the other kv head": (
        *(decode, "paged_fma.cuh", DECODE),
        *("kv_head = first_head / (p.num_heads / p.num_kv_heads)", "kv_head = first_head % p.num_kv_heads"),
    ),
    "warps do not wait for each other's results": (
        *(decode, "paged_fma.cuh", DECODE),
        *("__syncthreads();\n    return shared.results;", "return shared.results;"),
    ),
    "the query of the next dimensions": (
        *(decode, "paged_mma.cuh", LONG),
        *("2 * t + 8)", "2 * t)"),
    ),
    "values are not transposed": (
        *(decode, "paged_mma.cuh", LONG),
        *("load_matrices<4, true>", "load_matrices<4, false>"),
    ),
    "a tile is read before all lanes have it": (
        *(decode, "paged_mma.cuh", LONG),
        *("__syncwarp();  // the whole", "// the whole"),
    ),
    "a tile is read before it arrived": (
        *(decode, "paged_mma.cuh", LONG),
        *("wait_copies<STAGES - 2>", "wait_copies<STAGES - 1>"),
    ),
    "weights of the wrong tokens": (
        *(decode, "paged_mma.cuh", LONG),
        *(
            "transpose(pack<SCALAR>(weights.at[0], weights.at[1]))",
            "pack<SCALAR>(weights.at[0], weights.at[1])",
        ),
    ),
    "tokens before the window are weighed": (
        *(decode, "paged_mma.cuh", DECODE),
        *("first <= token && token < last", "token < last"),
    ),
    "tensor cores do not rescale": (
        *(decode, "paged_mma.cuh", LONG),
        *("state.acc[k].at[2 + h] *= rescale;", ""),
    ),
    "even bytes of a key for odd ones": (
        *(decode, "paged_mma.cuh", LONG_FP8),
        *("return {low.even, high.even, low.odd", "return {low.odd, high.even, low.even"),
    ),
    "splits are added without their weights": (
        *(decode_split, "paged_decode_split.cu", DECODE),
        *("HEAD_DIM + column] * weight;", "HEAD_DIM + column];"),
    ),
    "the mean of one column more": (
        *("rms_norm", "norm.cu", "3 x 64"),
        *("/ float(hidden)", "/ float(hidden + 1)"),
    ),
    "padding is written": (
        *("reshape_and_cache", "kv_write.cu", "5 tokens into fp32*"),
        *("slot < 0 || ", ""),
    ),
    "a scale of 128": (
        *("reshape_and_cache", "kv_write.cu", "5 tokens into int8*"),
        *("/ 127.0f", "/ 128.0f"),
    ),
    "nibbles in the wrong order": (
        *("int4_linear", "int4_gemv.cu", "*"),
        *("at[i + 4]", "at[7 - i]"),
    ),
    "zero points are ignored": (
        *("int4_linear", "int4_gemv.cu", "*"),
        *("fmaf(zero, float(1 << 4 * i), MAGIC_VALUE)", "MAGIC_VALUE"),
    ),
    "the end of a block is not copied": (
        *("copy_blocks", "copy.cu", "*"),
        *("< words) store", "< words - 1) store"),
    ),
    "one token more than top_k": (
        *("sample", "sampling.cu", "nearly equal, few stay by top-k*"),
        *("(chosen < 0 || sum < target)", "(chosen < 0 || sum <= target)"),
    ),
    "another hash": (
        *("sample", "sampling.cu", "5 rows, temperature, vocabulary 77"),
        *("0x9e3779b1u", "0x9e3779b9u"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_kernel_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    op, file, only, old, new = MUTANTS[name]
    dtype = torch.bfloat16 if file == "paged_mma.cuh" else torch.float32
    assert check_of(op, only, dtype).ok, "the check must pass before the change"

    folder = copy_sources(tmp_path)
    text = (folder / file).read_text()
    assert text.count(old) == 1, f"{file} has {text.count(old)} times: {old}"
    (folder / file).write_text(text.replace(old, new))
    monkeypatch.setattr(nvrtc, "source_folder", lambda: folder)
    assert check_of(op, only, dtype).failures


def check_of(op: Any, only: str, dtype: torch.dtype) -> Any:
    named = isinstance(op, str)
    return check(op if named else "paged_attention", "cuda" if named else op, only=only, dtype=dtype)
