"""Every Triton kernel compiles for the GPUs we name, without one, and keeps its values in registers."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton", reason="Triton has wheels for Linux only")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("interpreted kernels cannot be compiled", allow_module_level=True)

import torch
import triton
import triton.language as tl

from kernels.compile_report import ARCHITECTURES, KernelReport, gpu_kernels
from kernels.registry import IMPLEMENTATIONS, Implementation, get
from kernels.triton_ops.compile import compile_launch, launches

FORMS = {
    implementation.sources[0]: implementation
    for implementation in IMPLEMENTATIONS
    if implementation.backend == "triton"
}
"""One for every file that launches kernels."""


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_kernel_compiles_fits_and_does_not_spill(form: Implementation, arch: int) -> None:
    reports = [compile_it() for _, compile_it in gpu_kernels(form, arch)]
    assert reports or arch < 89, "only what needs fp8 tensor cores may be left out, and sm_89 has them"
    for report in reports:
        assert (report.spill_store_bytes, report.spill_load_bytes) == (0, 0), summary(report)
        assert report.occupancy.blocks >= 1, summary(report)
        assert f".target sm_{arch}" in report.ptx


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "case", "present", "absent"),
    [
        (80, "bf16", "mma.sync", "wgmma"),
        (90, "bf16", "wgmma.mma_async", "cp.async.bulk.tensor"),
        (90, "bf16, pages of 64", "cp.async.bulk.tensor", "mma.sync"),
    ],
)
def test_prefill_uses_the_matrix_units_and_copies_of_its_architecture(
    arch: int, case: str, present: str, absent: str
) -> None:
    compile_it = dict(gpu_kernels(get("paged_attention", "triton"), arch))[
        f"unified_attention_kernel[{case}]"
    ]
    ptx = compile_it().ptx
    assert present in ptx and absent not in ptx
    assert "wgmma" in ptx or arch < 90


@triton.jit
def greedy_kernel(x, out, N: tl.constexpr):
    """Keeps more values than fit into the registers of one warp, until their maximum is known."""
    index = tl.arange(0, N)
    values = tl.load(x + index)
    tl.store(out + index, values - tl.max(values, axis=0))


@pytest.mark.slow
def test_a_kernel_that_spills_is_seen() -> None:
    x = torch.empty(16384, device="meta")
    (launch,) = launches(lambda: greedy_kernel[(1,)](x, x, N=16384, num_warps=1))
    each = compile_launch(launch, 80, "too much")
    assert each.spill_store_bytes > 0 and each.spill_load_bytes > 0


@triton.jit
def scale_kernel(x, out, n, stride, one, bias, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + index * one, mask=index < n)
    if bias is not None:
        value += tl.load(bias + index)
    tl.store(out + index * stride, value, mask=index < n)


def test_a_recorded_launch_is_specialised_as_triton_does_it() -> None:
    x = torch.empty(64, dtype=torch.bfloat16, device="meta")
    (launch,) = launches(lambda: scale_kernel[(1,)](x, x, 64, 3, 1, None, BLOCK=64, num_warps=2))
    assert launch.signature == {
        "x": "*bf16",
        "out": "*bf16",
        "n": "i32",
        "stride": "i32",
        "one": "constexpr",
        "bias": "constexpr",
        "BLOCK": "constexpr",
    }
    assert launch.constants == {"one": 1, "bias": None, "BLOCK": 64}
    assert launch.divisible == ("x", "out", "n")
    assert launch.options == {"num_warps": 2}
    assert compile_launch(launch, 90, "bf16").threads == 64


def test_an_architecture_without_figures_is_refused() -> None:
    with pytest.raises(ValueError, match="no figures for sm_70; architectures: sm_80, sm_90"):
        next(gpu_kernels(get("rms_norm", "triton"), 70))


def summary(each: KernelReport) -> str:
    return (
        f"{each.name} ({each.file}) on sm_{each.arch}: {each.registers} registers, {each.shared_bytes} bytes of shared "
        f"memory, {each.spill_store_bytes} bytes spilled, {each.occupancy}"
    )
