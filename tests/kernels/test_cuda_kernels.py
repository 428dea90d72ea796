"""The CUDA kernels, run thread by thread on the host shim, against the reference in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.check.cases import cases
from kernels.check.run import check
from kernels.cuda import attention, launch
from kernels.cuda.shim import build as shim
from kernels.operations import OPERATIONS
from kernels.reference.copy import contiguous_runs
from kernels.registry import get

pytestmark = pytest.mark.skipif(shim.problem() is not None, reason=str(shim.problem()))

OPS = [op for op, entry in OPERATIONS.items() if "cuda" in entry.forms]
IN_HALF = {  # a few cases of each: what differs is the type of loads and stores
    "rms_norm": "heads of 80*",
    "fused_add_rms_norm": "residual in fp32",
    "reshape_and_cache": "5 tokens*",
    "int4_linear": "2 rows*",
}


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_every_case_agrees_and_a_row_alone_gives_the_same_bits(op: str) -> None:
    report = check(op, "cuda")
    assert report.ok, str(report)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("op", IN_HALF)
def test_half_precision_agrees(op: str, dtype: torch.dtype) -> None:
    report = check(op, "cuda", dtype=dtype, only=IN_HALF[op])
    assert report.ok, str(report)


@pytest.mark.parametrize("op", OPS)
def test_the_order_in_which_threads_run_does_not_matter(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, forwards = get(op, "cuda").load(), shim.HostKernel.launch
    unsupported = get(op, "cuda").unsupported

    def backwards(self: shim.HostKernel, *args: Any) -> None:
        forwards(self, *args, backwards=True)

    def results() -> list[Any]:
        found = []
        for case in list(cases(op, seed=1))[:9]:
            if not unsupported(*case.args, **case.kwargs):
                result = function(*case.args, **case.kwargs)
                found.append(
                    (
                        result,
                        [argument for argument in case.arguments().values() if isinstance(argument, Tensor)],
                    )
                )
        return found

    first = results()
    monkeypatch.setattr(shim.HostKernel, "launch", backwards)
    torch.testing.assert_close(results(), first, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("hidden", [1000, 2049])
def test_norm_of_a_row_that_takes_many_warps_and_several_loads_a_thread(hidden: int) -> None:
    generator = torch.Generator().manual_seed(hidden)
    x, residual = torch.randn(2, 3, hidden, generator=generator)
    weight = torch.randn(hidden, generator=generator)
    for name, args in (("rms_norm", (x,)), ("fused_add_rms_norm", (x, residual))):
        result = get(name, "cuda").load()(*args, weight, 1e-6)
        expected = get(name, "reference").load()(*(each.double() for each in (*args, weight)), 1e-6)
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5, check_dtype=False)


def _one_pass(*args: Any, **kwargs: Any) -> Tensor:
    return attention.decode_one_pass(*args, **kwargs)


def _split(*args: Any, **kwargs: Any) -> Tensor:
    return attention.decode_split(*args, **kwargs, split=16)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("version", [_one_pass, _split])
def test_both_versions_of_decode_agree(version: Any, dtype: torch.dtype) -> None:
    report = check("paged_attention", version, dtype=dtype, only="decode*")
    assert report.ok, str(report)


def test_a_sequence_in_one_split_has_the_bits_of_the_one_pass_kernel() -> None:
    for case in cases("paged_attention", seed=3):
        if "decode" in case.name:
            one_pass = attention.decode_one_pass(*case.args, **case.kwargs)
            split = attention.decode_split(*case.args, **case.kwargs, split=512)
            assert torch.equal(split.nan_to_num(), one_pass.nan_to_num()), case.describe()


def test_many_sequences_share_the_memory_for_partial_results(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(each for each in cases("paged_attention", seed=0) if "decode" in each.name)
    at_once = _split(*case.args, **case.kwargs)
    monkeypatch.setattr(attention, "PARTIAL_BYTES", 1)
    assert torch.equal(_split(*case.args, **case.kwargs), at_once)


@pytest.mark.parametrize("max_query_len", [None, 5])
def test_batches_that_may_hold_longer_queries_are_left_to_triton(max_query_len: int | None) -> None:
    case = next(each for each in cases("paged_attention", seed=0) if "decode" in each.name)
    query, kv, batch = case.args
    reason = get("paged_attention", "cuda").unsupported(
        query, kv, replace(batch, max_query_len=max_query_len), **case.kwargs
    )
    assert reason is not None and "triton" in reason


def test_eight_heads_of_a_block_are_the_most_and_more_take_several_blocks() -> None:
    groups = {
        heads: attention.Geometry(torch.float32, torch.float32, 64, heads, 16).group
        for heads in (1, 7, 8, 12, 16, 32, 11)
    }
    assert groups == {1: 1, 7: 7, 8: 8, 12: 6, 16: 8, 32: 8, 11: 1}


def test_tensor_cores_take_queries_that_they_do_not_round() -> None:
    def takes(scalar: torch.dtype, cached: torch.dtype, head_dim: int = 64, pairs: bool = True) -> bool:
        return attention.Geometry(scalar, cached, head_dim, 4, 16, pairs).tensor_cores

    bf16, fp16, fp32, fp8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
    assert takes(bf16, bf16) and takes(fp16, fp16) and takes(bf16, fp8) and takes(fp16, fp8)
    assert takes(bf16, torch.int8) and not takes(fp16, torch.int8)
    assert not takes(fp32, fp32) and not takes(bf16, bf16, head_dim=40) and not takes(bf16, bf16, pairs=False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_decode_on_tensor_cores_has_the_same_bits_in_any_order_of_threads(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    forwards = shim.HostKernel.launch
    for case in [each for each in cases("paged_attention", seed=2, dtype=dtype) if "decode" in each.name]:
        first = attention.decode_one_pass(*case.args, **case.kwargs)
        split = attention.decode_split(*case.args, **case.kwargs, split=512)
        with monkeypatch.context() as patch:
            patch.setattr(
                shim.HostKernel, "launch", lambda self, *args: forwards(self, *args, backwards=True)
            )
            backwards = attention.decode_one_pass(*case.args, **case.kwargs)
        for other in (split, backwards):
            assert torch.equal(other.nan_to_num(), first.nan_to_num()), case.describe()


def test_runs_of_neighbouring_blocks_are_one_copy() -> None:
    pairs = [[7, 3], [8, 4], [9, 5], [9, 6], [2, 7], [3, 8]]
    assert list(contiguous_runs(pairs)) == [(7, 3, 3), (9, 6, 1), (2, 7, 2)]
    assert list(contiguous_runs([])) == []


def test_declared_parameters_must_be_those_of_the_kernel() -> None:
    wrong = launch.Kernel("copy.cu", "copy_blocks", "pppiii", _COPY_DEFINES)
    with pytest.raises(TypeError, match="takes 'ppplll', declared are 'pppiii'"):
        launch.launch(wrong, None, None, None, 0, 0, 0, grid=(1,), block=(32,), device=torch.device("cpu"))


_COPY_DEFINES = (("WORD_BYTES", "16"), ("THREADS", "256"), ("UNROLL", "4"))


def test_too_little_shared_memory_names_what_is_needed_and_what_there_is() -> None:
    with pytest.raises(launch.LaunchError, match="sample needs 300000 bytes .* H100 has 232448"):
        launch.check_shared_memory("sample", 300_000, 232_448, "H100")


@pytest.mark.parametrize(
    ("op", "change", "expected"),
    [
        ("rms_norm", lambda args: (args[0].double(), *args[1:]), "float32, float16, bfloat16"),
        ("int4_linear", lambda args: (args[0].expand(9, -1), *args[1:]), "up to 8"),
        ("sample", lambda args: (args[0].half(), *args[1:]), "float32"),
    ],
)
def test_what_is_not_taken_is_refused_with_what_is(op: str, change: Any, expected: str) -> None:
    case = next(each for each in cases(op, seed=0) if each.args[0].shape[0] == 1)
    reason = get(op, "cuda").unsupported(*change(case.args), **case.kwargs)
    assert reason is not None and expected in reason
