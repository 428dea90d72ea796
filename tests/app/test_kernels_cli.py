"""`prep kernels`: what the screens say, what scripts get, and how it ends when something is wrong."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from app.cli import terminal
from app.cli.kernels import checking, names
from app.cli.main import app
from kernels import INSTALL_COMPILERS as INSTALL
from kernels import compile_report, registry
from kernels.bench import limits, results
from kernels.check.jobs import Job, run_jobs
from kernels.cuda import compile as nvrtc
from prep_common.child_process import ProcessEnded

needs_compiler = pytest.mark.skipif(registry.unavailable("cpu") is not None, reason="no C++ compiler")
needs_triton = pytest.mark.skipif(compile_report.cannot_compile("triton") is not None, reason="no Triton")
needs_nvrtc = pytest.mark.skipif(compile_report.cannot_compile("cuda") is not None, reason="no cuda-core")


def kernels(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["kernels", *arguments])


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(limits, "CPU_BUFFER_BYTES", 2**20)
    monkeypatch.setattr(limits, "CPU_SIDE", 64)


# --- list ------------------------------------------------------------------------------------------------------


def test_list_shows_every_operation_and_why_a_backend_does_not_run() -> None:
    result = kernels("list")
    assert result.exit_code == 0, result.output
    for op in registry.OPS:
        assert op in result.stdout
    if not torch.cuda.is_available():
        assert "no GPU here: " in result.stdout or "not installed" in result.stdout


def test_list_shows_every_name_that_is_suggested() -> None:
    assert all(alias in kernels("list").stdout for alias in names.ALIASES)


def test_list_as_json_names_sources_and_the_choice() -> None:
    report = json.loads(kernels("list", "--json").stdout)
    assert set(report["backends"]) == set(registry.BACKENDS)
    (norm,) = [row for row in report["operations"] if row["op"] == "rms_norm"]
    assert norm["implementations"]["reference"] == ["reference/norm.py"]
    assert norm["cpu"] == registry.preferred("rms_norm", "cpu")
    assert norm["gpu"] in ("cuda", "triton")


# --- check -----------------------------------------------------------------------------------------------------


@needs_compiler
def test_check_passes_what_is_right() -> None:
    result = kernels("check", "--backend", "cpu", "rmsnorm")
    assert result.exit_code == 0, result.output
    assert "rms_norm" in result.stdout and " 0 wrong" in result.stdout


def test_a_broken_implementation_ends_with_exit_code_1_and_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        good = registry.get("rms_norm", "reference").load()
        return good(x, weight, eps) * (1.001 if x.shape[0] == 3 else 1.0)

    implementation = inject(monkeypatch, "rms_norm", broken)
    result = kernels("check", "--backend", implementation.backend, "rms_norm", "--seed", "5")
    assert result.exit_code == 1
    assert "rms_norm, cpu, float32: 3 x 64" in result.stdout
    assert "elements are wrong, the first at [0, 0]" in result.stdout
    assert "strides" in result.stdout
    again = "prep kernels check rms_norm --backend cpu --dtype float32 --seed 5 --case '3 x 64'"
    assert again in result.stdout
    assert "prep kernels explain rms_norm" in result.stderr
    again_result = kernels(*again.partition(" --case")[0].split()[2:], "--case", "3 x 64", "--json")
    assert again_result.exit_code == 1
    (report,) = json.loads(again_result.stdout)["reports"]
    assert [(each["name"], each["status"]) for each in report["results"]] == [("3 x 64", "failed")]


def inject(monkeypatch: pytest.MonkeyPatch, op: str, function: Any) -> registry.Implementation:
    """`function` as the C++ implementation of an operation, in a process that has a compiler or not."""
    implementation = registry.Implementation(op, "cpu", "tests:broken", ("cpu/norm.py",))
    monkeypatch.setitem(registry.BY_NAME, (op, "cpu"), implementation)
    monkeypatch.setattr(registry, "unavailable", lambda backend: None)
    load = registry.Implementation.load
    monkeypatch.setattr(
        registry.Implementation,
        "load",
        lambda self: function if self is implementation else load(self),
    )
    monkeypatch.setattr(registry.Implementation, "unsupported", lambda self, *args, **kwargs: None)
    return implementation


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("check", "rms_nrom"), "unknown operation 'rms_nrom'"),
        (("check", "rms_nrom"), "did you mean 'rms_norm'?"),
        (
            ("check", "--backend", "metal"),
            "unknown backend 'metal'; there are: reference, cpu, triton, cuda, all",
        ),
        (("check", "--dtype", "float8"), "unknown dtype 'float8'"),
        (("check", "fp8_linear", "--backend", "cpu"), "fp8_linear is not written in cpu"),
        (("bench", "nothing"), "unknown operation 'nothing'"),
        (("bench", "fp8_linear", "--backend", "cpu"), "fp8_linear is not written in cpu"),
        (("bench", "rms_norm", "--write"), "RESULTS.md holds whole runs only"),
        (("explain", "rms_norm", "--arch", "70"), "no figures for the architecture '70'"),
        (("explain", "rms_norm", "--arch", "70", "--arch", "none"), "no figures for the architecture '70'"),
        (
            ("check", "rms_norm", "--backend", "cpu", "--case", "nope"),
            "no case 'nope'; the cases are: 0 x 64",
        ),
        (("explain", "fp8_linear", "--source", "cuda"), "fp8_linear is not written in cuda"),
    ],
)
def test_what_does_not_exist_is_told_with_what_does(arguments: tuple[str, ...], told: str) -> None:
    result = kernels(*arguments)
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_backend_that_cannot_run_here_is_an_environment_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "how", lambda backend: names.How("not", "no C++ compiler; apt install g++"))
    result = kernels("check", "--backend", "cpu")
    assert result.exit_code == 3
    assert "nothing can be checked here: cpu: no C++ compiler" in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU nothing is interpreted")
@needs_triton
def test_triton_kernels_are_interpreted_in_a_child() -> None:
    result = kernels("check", "--backend", "triton", "silu_mul", "--json")
    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.stdout)["reports"]
    assert report["ok"] and report["backend"] == "triton"
    assert sum(each["status"] == "passed" for each in report["results"]) > 5


@pytest.mark.slow
def test_several_children_do_all_jobs_between_them() -> None:
    jobs = [Job(op, "reference") for op in ("silu_and_mul", "embedding", "rms_norm")]
    done = list(run_jobs(jobs, workers=2))
    assert {job for job, _ in done} == set(jobs)
    assert all(result.status == "passed" for _, result in done)


def test_a_child_that_dies_is_told_with_its_last_words() -> None:
    job = Job("silu_and_mul", "reference", environment=(("PYTHONHOME", "/no/such/folder"),))
    with pytest.raises(
        ProcessEnded, match="the process that checks reference kernels ended with exit code 1: "
    ):
        list(run_jobs([job]))


def test_interrupted_checks_show_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(jobs: list[Job], workers: int) -> Any:
        from kernels.check.jobs import run_here

        yield from list(run_here(jobs[:1]))
        raise KeyboardInterrupt

    monkeypatch.setattr("kernels.check.jobs.run_jobs", stopped)
    result = kernels("check", "--backend", "reference")
    assert result.exit_code == 130
    assert registry.OPS[0] in result.stdout and "interrupted" in result.stderr


# --- bench -----------------------------------------------------------------------------------------------------


def test_bench_as_json_has_times_limits_and_shares() -> None:
    result = kernels("bench", "rope", "--seconds", "0.01", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["limits"]["copy_bandwidth"] > 0 and report["limits"]["flops"]["float32"] > 0
    assert report["machine"]["torch"] == torch.__version__
    for measurement in report["measurements"]:
        assert measurement["op"] == "rotary_embedding" and measurement["bound"] in ("memory", "compute")
        assert (
            measurement["p10"] <= measurement["seconds"] <= measurement["p90"] and measurement["samples"] >= 5
        )
        assert measurement["share"] == pytest.approx(measurement["limit_seconds"] / measurement["seconds"])


@needs_compiler
def test_bench_measures_decode_beside_sdpa_over_gathered_pages() -> None:
    result = kernels("bench", "paged_decode", "--seconds", "0.01", "--json")
    report = json.loads(result.stdout)
    bars = {bar["what"].partition(":")[0] for bar in report["bars"]}
    assert bars == {"shop, decode 32 x 512", "386M, decode 32 x 512"}
    for bar in report["bars"]:
        name = bar["what"].partition(":")[0]
        of_it = [measurement for measurement in report["measurements"] if measurement["workload"] == name]
        ours = next(each for each in of_it if each["candidate"] == "cpu")
        rivals = [each["seconds"] for each in of_it if not each["ours"]]
        assert len(rivals) == 2
        assert bar["measured"] == pytest.approx(min(rivals) / ours["seconds"])


def test_bench_on_the_screen_names_the_machine_and_its_limits() -> None:
    result = kernels("bench", "silu_mul", "--seconds", "0.01")
    assert result.exit_code == 0, result.output
    assert "torch silu, mul" in result.stdout and "limits: copy " in result.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it can be measured")
def test_the_interpreter_is_not_worth_measuring() -> None:
    result = kernels("bench", "rms_norm", "--backend", "triton")
    assert result.exit_code == 3
    assert "triton cannot be measured here" in result.stderr


def test_results_replace_their_own_section_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "RESULTS.md"
    begin, end = results._markers("cuda")
    gpu = f"{begin}\n## GPU\n\nmeasured elsewhere\n{end}\n"
    file.write_text(
        f"# Measured\n\nold words\n\n<!-- cpu: begin -->\nold figures\n<!-- cpu: end -->\n\n{gpu}"
    )
    monkeypatch.setattr(results, "RESULTS", file)
    monkeypatch.setattr(registry, "OPS", ("silu_and_mul",))
    result = kernels("bench", "--all", "--write", "--seconds", "0.01")
    assert result.exit_code == 0, result.output
    text = file.read_text()
    assert gpu in text and "old" not in text
    assert "| silu_and_mul | 32 x 640 | reference |" in text
    assert f"torch {torch.__version__}" in text
    kernels("bench", "--all", "--write", "--seconds", "0.01")
    assert file.read_text().count("## CPU") == file.read_text().count("## GPU") == 1


# --- explain ---------------------------------------------------------------------------------------------------


def test_explain_prints_contract_and_sources_as_plain_text_in_a_pipe() -> None:
    result = kernels("explain", "rms_norm", "--arch", "none")
    assert result.exit_code == 0, result.output
    assert "x / rms(x) * weight over the last dimension." in result.stdout
    for implementation in registry.implementations("rms_norm"):
        for source in implementation.sources:
            assert f"==== {implementation.backend}: kernels/{source}" in result.stdout
    norm = Path(registry.__file__).parent / "reference" / "norm.py"
    assert norm.read_text().rstrip() in result.stdout


def test_explain_wraps_the_contract_to_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = kernels("explain", "reshape_and_cache", "--arch", "none", "--source", "none").stdout
    assert "\n  float8_e5m2    the same" in shown and max(map(len, shown.splitlines())) <= 60


def test_explain_one_half_of_attention() -> None:
    decode = kernels("explain", "paged_decode", "--arch", "none").stdout
    prefill = kernels("explain", "prefill", "--arch", "none").stdout
    assert "==== triton: kernels/triton_ops/split_kv_decode.py" in decode
    assert "unified_attention.py\n" not in decode
    assert "==== triton: kernels/triton_ops/unified_attention.py" in prefill
    assert "==== cuda: kernels/cuda/paged_decode.cu" not in prefill


@needs_nvrtc
def test_explain_says_what_the_compiler_made_of_it() -> None:
    result = kernels(
        "explain", "rms_norm", "--source", "none", "--arch", "90", "--kernel", "rms_norm[bf16", "--json"
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert not report["not_compiled"]
    for each in report["compiled"]:
        assert each["arch"] == 90 and each["registers"] > 0
        assert each["spill_store_bytes"] == 0
        assert 0 < each["occupancy"]["ratio"] <= 1 and each["occupancy"]["limited_by"]


@needs_nvrtc
def test_ptx_is_all_that_goes_to_the_pipe() -> None:
    result = kernels("explain", "rms_norm", "--ptx", "--arch", "80", "--kernel", "rms_norm[bf16, 4096]")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("// ")
    assert ".target sm_80" in result.stdout and ".entry rms_norm" in result.stdout


@pytest.fixture
def no_gpu_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU on which neither triton nor cuda-core is installed."""
    for name in ("triton", "cuda", "cuda.bindings", "cuda.core"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    monkeypatch.setattr(compile_report, "find_spec", lambda name: None)
    monkeypatch.setattr(names, "find_spec", lambda name: None)
    missing = lambda backend: None if backend in ("reference", "cpu") else f"{backend} is missing; {INSTALL}"  # noqa: E731
    monkeypatch.setattr(registry, "unavailable", missing)
    nvrtc._nvrtc_version.cache_clear()


@pytest.mark.usefixtures("no_gpu_compilers")
@pytest.mark.parametrize(
    "command",
    [
        ("list",),
        ("explain", "rms_norm"),
        ("check", "silu_mul"),
        ("check", "silu_mul", "--backend", "triton"),
        ("explain", "rms_norm", "--ptx"),
    ],
    ids=" ".join,
)
def test_without_triton_the_screens_print_the_whole_pip_command(command: tuple[str, ...]) -> None:
    """Rich takes [cuda] for a tag, and drops it, unless the text is escaped."""
    result = kernels(*command)
    assert f"{sys.executable} -m pip install -e '.[cuda]'" in result.output


@pytest.mark.usefixtures("no_gpu_compilers")
def test_without_compilers_explain_shows_the_sources_and_what_is_missing() -> None:
    result = kernels("explain", "rms_norm")
    assert result.exit_code == 0
    assert "triton kernels are not compiled: triton is not installed; in the checkout: " in result.stdout
    assert "cuda kernels are not compiled: cuda-core is not installed" in result.stdout
    assert "==== triton: kernels/triton_ops/norm.py" in result.stdout
    assert kernels("explain", "rms_norm", "--ptx").exit_code == 3


def test_explain_begins_with_the_contract_and_an_overview_and_uses_a_pager_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen, pages = io.StringIO(), []
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(
        terminal, "out", lambda: Console(file=screen, force_terminal=True, width=100, highlight=False)
    )
    monkeypatch.setattr("rich.pager.SystemPager.show", lambda pager, content: pages.append(content))
    assert kernels("explain", "silu_mul", "--arch", "none").exit_code == 0
    (page,) = pages
    assert screen.getvalue() == ""
    order = ("silu(first half)", "lines", "kernels/triton_ops/activation.py ", "reference: kernels/")
    places = [page.index(text) for text in order]
    assert places == sorted(places)


FOREIGN = "path|file|trace|target|folder|problem|error|warning|finding"
"""Names of texts that are not written as markup."""


def test_paths_and_messages_are_never_printed_as_markup() -> None:
    folder = Path(terminal.__file__).parent
    printed = re.compile(r"\bprint\(f?\".*\{(?:str\(|_shown\()?(?:" + FOREIGN + r")\b")
    found = [
        f"{file.relative_to(folder)}:{number}: {line.strip()}"
        for file in sorted(folder.rglob("*.py"))
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if printed.search(line) and "markup=False" not in line and " print(" not in line
    ]
    assert not found, "wrap the text in terminal.literal():\n" + "\n".join(found)
