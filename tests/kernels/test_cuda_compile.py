"""Every CUDA kernel compiles for A100 and H100 without a GPU, keeps to its registers and loads 16 bytes at a time."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from kernels.compile_report import KernelReport, gpu_kernels
from kernels.cuda import compile as nvrtc
from kernels.cuda import launch
from kernels.registry import IMPLEMENTATIONS
from tests.kernels.cuda_sources import copy_sources

pytestmark = pytest.mark.skipif(nvrtc.problem() is not None, reason=str(nvrtc.problem()))

FORMS = {
    implementation.sources[-1]: implementation
    for implementation in IMPLEMENTATIONS
    if implementation.backend == "cuda"
}.values()
"""One for every file that launches kernels."""
PTX_TYPES = {"p": "u64", "l": "u64", "i": "u32", "f": "f32"}


@pytest.fixture(scope="module", params=[80, 90])
def reports(request: pytest.FixtureRequest) -> list[KernelReport]:
    return [compile_it() for form in FORMS for _, compile_it in gpu_kernels(form, request.param)]


def body_of(report: KernelReport) -> str:
    """The PTX of this kernel only."""
    start = report.ptx.index(f".entry {report.name.split('[')[0]}(")
    end = report.ptx.find(".entry ", start + 1)
    return report.ptx[start : end if end > 0 else None]


def test_nothing_spills(reports: list[KernelReport]) -> None:
    spilling = {report.name for report in reports if report.spill_store_bytes or report.spill_load_bytes}
    assert not spilling
    assert len({report.name for report in reports}) == len(reports) > 20


def test_every_kernel_of_every_file_is_compiled(reports: list[KernelReport]) -> None:
    compiled = {report.name.split("[")[0] for report in reports}
    sources = "".join(path.read_text() for path in nvrtc.source_folder().glob("*.cu"))
    declared = re.findall(r'extern "C" __global__ void(?: BLOCKS_PER_SM\(.*?\))?\s+(\w+)\(', sources)
    assert compiled == set(declared)


def test_blocks_of_attention_fit_on_an_sm_as_often_as_planned(reports: list[KernelReport]) -> None:
    occupancy = {report.name: report.occupancy.ratio for report in reports}
    for case in ("bf16, 4 x 128", "bf16, 8 x 128", "fp16, 4 x 128"):
        assert occupancy[f"paged_decode[{case}]"] >= 0.25
    for case in ("bf16, 7 x 64", "bf16, fp8 cache", "bf16, int8 cache"):
        assert occupancy[f"paged_decode_partial[{case}]"] > 0.3
    assert occupancy["paged_decode[fp32, 4 x 128]"] > 0.15


def test_decode_of_16_bit_queries_uses_tensor_cores(reports: list[KernelReport]) -> None:
    ptx = {report.name: body_of(report) for report in reports}
    for case, dtype in (("bf16, 8 x 128", "bf16"), ("fp16, 4 x 128", "f16"), ("bf16, fp8 cache", "bf16")):
        text = ptx[f"paged_decode[{case}]"]
        assert f"mma.sync.aligned.m16n8k16.row.col.f32.{dtype}.{dtype}.f32" in text and "ldmatrix" in text
    for case in ("fp32, 4 x 128", "bf16, 4 x 40"):  # in full precision, and rows of an odd size
        assert "mma.sync" not in ptx[f"paged_decode[{case}]"]


def test_memory_moves_16_bytes_at_a_time(reports: list[KernelReport]) -> None:
    ptx = {report.name: body_of(report) for report in reports}
    for name in (
        "rms_norm[bf16, 4096]",
        "fused_add_rms_norm[bf16, 4096]",
        "kv_write[bf16]",
        "copy_blocks[bf16]",
    ):
        assert set(re.findall(r"ld\.global[.nc]*\.v4", ptx[name])), name
        assert "st.global.v4.u32" in ptx[name] and not re.search(r"st\.global\.u\d", ptx[name]), name
    assert "cp.async.cg" in ptx["paged_decode[bf16, 4 x 128]"]
    name = "paged_decode[bf16, 4 x 40]"
    assert "ld.shared.v4.u32" in ptx[name] and "ld.shared.u16" not in ptx[name]


def test_declared_parameters_are_those_of_the_compiled_kernels() -> None:
    for form in FORMS:
        for label, call in import_module(form.entry.partition(":")[0]).compile_cases(90).items():
            for each in launch.launches(call):
                report = launch.compile_launch(each, 90, label)
                head = body_of(report).split(")")[0]
                declared = [PTX_TYPES[letter] for letter in each.kernel.parameters]
                assert re.findall(r"\.param \.(\w+)", head) == declared, report.name


def test_cuda_core_takes_the_arguments_that_a_launch_passes() -> None:
    handler = pytest.importorskip("cuda.core._kernel_arg_handler")
    arguments = [
        launch.argument(letter, value) for letter, value in zip("plif", (2**40, -1, -1, 0.5), strict=True)
    ]
    handler.ParamHolder(tuple(arguments))
    with pytest.raises(TypeError):
        handler.ParamHolder(("text",))


def test_a_compiled_kernel_is_found_again_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREP_CACHE", str(tmp_path))
    defines = (("WORD_BYTES", "16"), ("THREADS", "32"), ("UNROLL", "1"))
    compile_now = nvrtc.compiled.__wrapped__
    first = compile_now("copy.cu", defines, 90, nvrtc.source_folder())
    monkeypatch.setattr(nvrtc, "_compile", lambda *args: pytest.fail("compiled again"))
    assert compile_now("copy.cu", defines, 90, nvrtc.source_folder()) == first


def test_source_that_does_not_compile_is_one_line_with_the_place(tmp_path: Path) -> None:
    folder = copy_sources(tmp_path)
    (folder / "copy.cu").write_text(
        '#include "common.cuh"\nextern "C" __global__ void copy() { nonsense; }\n'
    )
    with pytest.raises(
        nvrtc.CompileError, match=r'^sm_90: copy.cu\(2\): error: identifier "nonsense" is undefined$'
    ):
        nvrtc.compiled("copy.cu", (), 90, folder)
