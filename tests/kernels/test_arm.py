"""The C++ kernels on ARM: cross-compiled, and replayed in an emulator with the cases of `kernels.check`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernels.cpu import build, compile
from kernels.registry import IMPLEMENTATIONS

HERE = Path(__file__).parent / "replay"
ROOT = Path(__file__).resolve().parents[2]
EMULATOR = "qemu-aarch64-static"
COMPILERS = {
    "g++": ("aarch64-linux-gnu-g++",),
    "clang++": ("clang++", "--target=aarch64-linux-gnu"),
}
FORMS = {
    "max": (
        "gemm_bf16 gemm_bf16_mmla",
        "int8_linear int8_linear_i8mm",
        "norm_gemm_bf16 norm_gemm_bf16_mmla",
        "paged_attention paged_attention_bf16",
    ),
    "neoverse-n1": ("int8_linear int8_linear_dotprod",),
    "cortex-a72": (),
}
"""Processors of the emulator, and the kernels that they run in another form than that of ARMv8.0."""
CONSTANTS = "gemm_lanes 4\nlora_max_slices 8\n"


def needs(program: str, package: str) -> None:
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed; apt install {package}")


@dataclass(frozen=True)
class Replay:
    """The kernels and `replay.cpp` as one static program for ARM."""

    program: Path

    def run(self, cpu: str, *files: Path) -> str:
        command = [EMULATOR, "-cpu", cpu, str(self.program), *map(str, files)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module", params=COMPILERS)
def replay(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Replay:
    needs(EMULATOR, "qemu-user-static")
    needs("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")
    compiler = COMPILERS[request.param]
    needs(compiler[0], "clang")
    folder = tmp_path_factory.mktemp("arm")
    objects = []
    for source in (*compile.sources(build.SOURCES, is_arm=True), HERE / "replay.cpp"):
        objects.append(str(folder / f"{source.stem}.o"))
        options = ["-O1" if flag == "-O3" else flag for flag in compile.PORTABLE_FLAGS]
        options = compile.flags(source, tuple(options))
        command = [*compiler, *options, "-Werror", "-c", str(source), "-o", objects[-1]]
        finished = subprocess.run(command, capture_output=True, text=True)
        assert finished.returncode == 0, finished.stderr
    program = folder / "replay"
    subprocess.run([*compiler, "-static", *objects, "-o", str(program)], check=True)
    return Replay(program)


def record(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "tests.kernels.replay.record", *map(str, arguments)]
    finished = subprocess.run(command, cwd=ROOT, input=CONSTANTS, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calls") / "calls"
    record("record", path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["max", "cortex-a72"])
def test_replayed_cases_agree_with_the_reference_and_a_row_is_the_same_alone_and_in_a_batch(
    cpu: str, replay: Replay, calls: Path, tmp_path: Path
) -> None:
    replay.run(cpu, calls, tmp_path / "results")
    lines = record("judge", calls, tmp_path / "results").splitlines()
    passed = {tuple(line.split()[:2]): int(line.split()[2]) for line in lines if len(line.split()) == 3}
    assert len(passed) == len(lines), "\n".join(lines)
    ops = {implementation.op for implementation in IMPLEMENTATIONS if implementation.backend == "cpu"}
    assert ops == {op for (op, dtype), count in passed.items() if dtype == "float32" and count}


@pytest.mark.slow
def test_each_processor_gets_the_forms_that_it_can_run(replay: Replay) -> None:
    for cpu, forms in FORMS.items():
        assert replay.run(cpu) == CONSTANTS + "".join(f"{form}\n" for form in forms), cpu


@pytest.mark.slow
def test_the_instruction_for_four_bytes_changes_no_bit(replay: Replay, calls: Path, tmp_path: Path) -> None:
    """Integer sums are exact; nothing else differs between the two processors."""
    for cpu in ("neoverse-n1", "cortex-a72"):
        replay.run(cpu, calls, tmp_path / cpu)
    assert (tmp_path / "neoverse-n1").read_bytes() == (tmp_path / "cortex-a72").read_bytes()


@pytest.mark.slow
def test_a_wrong_number_in_the_results_fails(replay: Replay, calls: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    replay.run("max", calls, results)
    content = bytearray(results.read_bytes())
    for place in range(len(content) // 2, len(content), 1001):
        content[place] ^= 64
    results.write_bytes(content)
    assert " failed" in record("judge", calls, results)


def test_the_readme_lists_the_processors_that_are_emulated() -> None:
    readme = (ROOT / "kernels" / "README.md").read_text()
    rows = [line.split("|")[1:3] for line in readme.splitlines() if "of qemu |" in line]
    assert [(cpu.split("`")[1], re.findall(r"`(\w+)`", forms)) for cpu, forms in rows] == [
        (cpu, [form.split()[1] for form in forms]) for cpu, forms in FORMS.items()
    ]
