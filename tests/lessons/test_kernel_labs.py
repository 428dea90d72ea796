"""Labs of kernels: whatever a learner writes in C++ or CUDA ends in a sentence, and reports come from the compilers."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from app.cli.main import app
from kernels import INSTALL_COMPILERS
from kernels.compile_report import KernelReport
from kernels.outside_sources import cuda_plan
from lessons.course import native_guest
from lessons.course.checking import run_checks
from lessons.course.gpu_report import widest_access
from lessons.course.lesson_files import Lab, find_lab, solution
from lessons.course.mutants import mutants
from lessons.given import native

CPP, CUDA, TRITON = (find_lab(f"{language}-rms-norm") for language in ("cpp", "cuda", "triton"))
OURS = solution(CPP.number)
SIGNATURE = OURS[OURS.index('extern "C"') : OURS.index("{") + 1]


def body(text: str) -> str:
    return f"#include <cstdlib>\n#include <cstdio>\n{SIGNATURE} {text} }}"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "the file is empty"),
        ("int x = ;", "learner.cpp:1"),
        (f'#include "{CPP.folder / "solution.cpp"}"\n', "ermission denied"),
        (f'asm(".incbin \\"{CPP.folder / "solution.cpp"}\\"");\n{SIGNATURE} }}', "solution.cpp"),
        (f"#define fused_add_rms_norm other\n{SIGNATURE} }}", "fused_add_rms_norm"),
        (body("*(volatile int*)0 = 1;"), "your code"),
        (body("std::exit(0);"), "ended itself"),
        (body("std::abort();"), "your code"),
        (body("out[-1] = 0;"), "writes outside of argument 4"),
        (body("total[rows * hidden] = 0;"), "writes outside of argument 5"),
        (body("for (int i = 0; i < 100000; i++) std::printf(\"flood %d\", i);"), "expected"),
        (body(f'if (!std::fopen("{CPP.folder / "solution.cpp"}", "r")) std::abort();'), "your code"),
        (body('if (std::system("true")) std::abort();'), "your code"),
        ("\ufeff" + OURS.replace("both * both", "both").replace("\n", "\r\n"), "expected"),
    ],
)  # fmt: skip
def test_a_faulty_file_gets_a_sentence(source: str, said: str) -> None:
    report = run_checks(CPP.number, source, only="a_row_by_the_definition")
    told = report.problem or report.results[0].why
    assert not report.ok and said in told, told
    assert len(told) < 500 and "Traceback" not in told


@pytest.mark.slow
def test_a_kernel_that_never_ends_is_stopped() -> None:
    report = run_checks(
        CPP.number, body("for (volatile int i = 0;; i = i + 1) {}"), only="a_row_by_the_definition"
    )
    assert "stopped after" in report.results[0].why


def test_a_launch_that_a_gpu_would_punish_is_told() -> None:
    ours = solution(CUDA.number)
    wrong = ours.replace("value += __shfl", "if (lane_id() < 16) value += __shfl")
    [result] = run_checks(CUDA.number, wrong, only="a_row_by_the_definition").results
    assert "lane" in result.why or "warp" in result.why, result.why
    wrong = ours.replace("int hidden, float eps", "long hidden, float eps")
    [result] = run_checks(CUDA.number, wrong, only="a_row_by_the_definition").results
    assert "parameters" in result.why


@pytest.mark.parametrize(
    ("lab", "why", "said"),
    [
        (
            CPP,
            "looks at the number behind the last before it compares the index",
            "reads behind the end of argument 3",
        ),
        (CPP, "looks at the number before the first", "reads before the start of argument 1"),
        (CPP, "a scratch array for each row, never freed", "allocated in each call"),
        (CUDA, "four warps add to one number without an atomic", "a race: threads 0 and 32"),
        pytest.param(CUDA, "one thread works", "times its share", marks=pytest.mark.slow),
        (TRITON, "the weight is loaded without a mask", "this load needs a mask"),
        (TRITON, "torch computes, and no kernel runs", "launches no kernel"),
    ],
)
def test_a_fault_that_no_result_shows_is_told(lab: Lab, why: str, said: str) -> None:
    wrong = next(mutant for mutant in mutants(lab) if mutant.why == why)
    [result] = run_checks(lab.number, wrong.source, only=wrong.check).results
    assert not result.ok and said in result.why, result.why


def test_the_shim_is_compiled_once_and_again_where_nothing_can_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = cuda_plan(solution(CUDA.number), CUDA.exercise.objects)
    assert not any("races.cpp" in word for word in kept.command)
    (tmp_path / "file").touch()
    monkeypatch.setenv("PREP_CACHE", str(tmp_path / "file" / "cache"))
    report = run_checks(CUDA.number, f"{solution(CUDA.number)}// not compiled\n", only="no_two_threads_race")
    assert report.ok, report


def test_the_interpreter_takes_a_mask_of_two_conditions() -> None:
    """Triton 3.9 refuses it in the interpreter, and compiles it."""
    lab = find_lab("triton-kv-write")
    guarded = solution(lab.number).replace(
        "    if slot >= 0:\n        ", "    inside = inside & (slot >= 0)\n    "
    )
    guarded = guarded.replace("\n        tl.store", "\n    tl.store")
    assert "if slot" not in guarded
    report = run_checks(lab.number, guarded, only="padding_writes_nothing")
    assert report.ok, report


def test_without_triton_the_next_step_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_guest, "find_spec", lambda name: None)
    report = run_checks(TRITON.number, solution(TRITON.number))
    assert "triton is not installed" in report.problem and INSTALL_COMPILERS in report.problem


@pytest.mark.parametrize("lab", [CPP, CUDA], ids=lambda lab: lab.number)
def test_without_a_compiler_the_next_step_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    report = run_checks(lab.number, f"// not compiled before\n{solution(lab.number)}")
    assert "no C++ compiler" in report.problem and "install one" in report.problem


@pytest.mark.slow
@pytest.mark.parametrize("lab", [CUDA, TRITON], ids=lambda lab: lab.number)
def test_the_report_of_the_reference(lab) -> None:
    run = CliRunner().invoke(app, ["kernels", "lab", lab.number, "--solution", "--json"])
    assert run.exit_code == 0, run.output
    reports = json.loads(run.stdout)["gpu"]
    assert [report["arch"] for report in reports] == [80, 90]
    for report in reports:
        assert (
            16 <= report["registers"] <= 255 and report["threads"] == 128 and report["spill_store_bytes"] == 0
        )
        assert report["bound"] == "memory" and report["widest_access_bytes"] in (4, 16)
    assert reports[0]["least_seconds"] == pytest.approx((16 * 4096**2 + 4 * 4096) / 2039e9)


def test_the_widest_access_counts_asynchronous_copies() -> None:
    def widest(ptx: str) -> int:
        return widest_access(KernelReport("k", "k.cu", 80, 32, 0, 0, 0, 128, ptx))

    assert widest("ld.param.u64 %rd1, [a];") == 0
    assert widest("ld.global.b32 %r1, [%rd1];  st.global.v2.b32 [%rd2], {%r1, %r2};") == 8
    assert (
        widest(
            "ld.global.b32 %r1, [%rd1]; cp.async.cg.shared.global [ %r31 + 0 ], [ %rd16 + 0 ], 0x10, %r32;"
        )
        == 16
    )


@pytest.mark.slow
def test_a_lab_of_two_kernels_reports_both_within_80_columns() -> None:
    run = CliRunner().invoke(app, ["kernels", "lab", "cuda-lora-sgmv", "--solution"], env={"COLUMNS": "80"})
    assert run.exit_code == 0, run.output
    report = run.output[run.output.index("lora_shrink:") :]
    assert "lora_expand:" in report and max(map(len, report.splitlines())) <= 80
    assert report.count("predicted time, at least") == 2 and report.count("H100 (sm_90)") == 2


def test_the_list_names_labs_of_the_track_only() -> None:
    listed = json.loads(CliRunner().invoke(app, ["kernels", "lab", "--json"]).stdout)
    assert {lab["name"] for lab in listed} >= {"cpp-rms-norm", "cuda-rms-norm", "triton-rms-norm"}
    refused = CliRunner().invoke(app, ["kernels", "lab", "fair-share"])
    assert refused.exit_code == 2 and "track policies" in refused.output


@pytest.mark.parametrize(
    ("per_round", "lost"),
    [
        ([4096, 0], 0),
        (
            [112] * 15 + [0],
            0,
        ),  # one freed piece of 112 bytes goes to a cache in each round, until that is full
        ([-4096] + [128] * 19, 16),
        ([128] * 20, 16),
    ],
    ids=["first calls", "caches fill", "freed before", "leak"],
)
def test_only_memory_that_stays_allocated_in_every_round_is_a_leak(per_round: list[int], lost: int) -> None:
    rounds = iter(accumulate(per_round, initial=1 << 20))
    counted = [1 << 20]

    def allocated_bytes() -> int:
        """Before a round and after it, as `mallinfo2` says; nothing else happens between two rounds."""
        counted.append(next(rounds) if len(counted) % 2 == 0 else counted[-1])
        return counted[-1]

    next(rounds)
    assert native._leaked(SimpleNamespace(allocated_bytes=allocated_bytes), lambda: None) == lost
