"""Building the C++ kernels: whatever goes wrong, there is one line about it and the engine answers through SDPA."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernels.cpu import build, compile

ROOT = Path(__file__).resolve().parents[2]
SOURCE = 'extern "C" long answer() { return 42; }\n'


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One function in place of all kernels, and an empty cache. Returns the folder of the sources."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "answer.cpp").write_text(SOURCE)
    monkeypatch.setattr(build, "SOURCES", sources)
    monkeypatch.setenv("PREP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PREP_KERNELS_COMPILER", raising=False)
    return sources


load = build.load_library.__wrapped__
"""As `build.load_library`, but anew each time."""


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


needs_compiler = pytest.mark.skipif(build.load_library().handle is None, reason="no compiler here")


# --- the cache -------------------------------------------------------------------------------------------------


@needs_compiler
def test_the_first_process_builds_and_the_next_one_finds_it(small: Path, tmp_path: Path) -> None:
    first, second = load(), load()
    assert first.problem is None and first.handle["answer"]() == 42
    assert first.build_seconds > 0 and second.build_seconds == 0
    assert first.path == second.path and second.path.is_relative_to(tmp_path / "cache" / "kernels")
    assert sorted(path.name for path in second.path.parent.iterdir()) == ["kernels.so", "sha256"]
    assert not list((tmp_path / "cache" / "kernels").glob(".building-*"))


@needs_compiler
def test_a_build_removes_what_a_killed_one_left(small: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache" / "kernels"
    for name, age_s in (("killed", 4000), ("running", 60)):
        (cache / f".building-{name}").mkdir(parents=True)
        os.utime(cache / f".building-{name}", (time.time() - age_s,) * 2)
    assert load().problem is None
    assert [path.name for path in cache.glob(".building-*")] == [".building-running"]


@needs_compiler
def test_an_edit_builds_anew(small: Path) -> None:
    before = load()
    (small / "answer.cpp").write_text(SOURCE.replace("42", "43"))
    after = load()
    assert after.path != before.path and after.handle["answer"]() == 43
    (small / "header.h").write_text("// headers count too\n")
    assert load().path != after.path


@needs_compiler
@pytest.mark.parametrize(
    "damage", ["empty", "cut short", "one bit", "no library", "no digest", "a file in its place"]
)
def test_a_damaged_library_is_built_again_and_never_loaded(small: Path, damage: str) -> None:
    """Loading a file that is cut short ends the process with SIGBUS."""
    path, _ = build.build()
    whole = path.read_bytes()
    folder = path.parent
    if damage == "empty":
        path.write_bytes(b"")
    elif damage == "cut short":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "one bit":
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage == "no library":
        path.unlink()
    elif damage == "no digest":
        (folder / "sha256").unlink()
    else:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        folder.write_text("not a folder")
        assert "do not load" in load().problem or "no place" in load().problem
        return
    again = load()
    assert again.build_seconds > 0 and again.handle["answer"]() == 42
    assert path.read_bytes() == whole


@pytest.mark.slow
@needs_compiler
def test_two_processes_may_build_at_once(small: Path, tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from kernels.cpu import build;"
        f"build.SOURCES = Path({str(small)!r}); library = build.load_library();"
        "print(library.problem, library.handle['answer'](), library.path)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert said[0] == said[1] and said[0].startswith("None 42 ")
    assert len(list((tmp_path / "cache" / "kernels").glob("*"))) == 2, "the library and the lock"


def test_a_cache_that_cannot_be_written_is_one_line(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PREP_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setenv("PREP_KERNELS_COMPILER", script(tmp_path / "compiler", "exit 1"))
    problem = load().problem
    assert problem.startswith("no place for the compiled kernels: ")
    assert problem.endswith("; set PREP_CACHE to a writable folder") and "\n" not in problem


def test_a_full_disk_is_the_reason_and_not_the_compiler(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "as: can't write 306 bytes to x.o: 'No space left on device'"
    monkeypatch.setenv("PREP_KERNELS_COMPILER", script(tmp_path / "compiler", f'echo "{words}" >&2; exit 1'))
    problem = load().problem
    assert problem.startswith("no place for the compiled kernels: No space left on device; free disk space")
    assert not list((tmp_path / "cache").rglob("*.failed")), "it may succeed the next time"


def test_a_user_without_a_home_is_one_line(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PREP_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("PREP_KERNELS_COMPILER", script(tmp_path / "compiler", "exit 1"))
    monkeypatch.setattr(Path, "home", no_home)
    assert "Could not determine home directory.; set PREP_CACHE" in load().problem


# --- the compiler ----------------------------------------------------------------------------------------------


def problem_with(monkeypatch: pytest.MonkeyPatch, compiler: str) -> str:
    """Return the problem that a faulty compiler causes. It sees only files of the test, which it might overwrite."""
    monkeypatch.setattr(build, "_openmp_runtime", lambda: None)
    monkeypatch.setenv("PREP_KERNELS_COMPILER", compiler)
    library = load()
    assert library.handle is None and "\n" not in library.problem
    return library.problem


def test_an_empty_variable_switches_the_kernels_off(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problem_with(monkeypatch, "") == "switched off: PREP_KERNELS_COMPILER is empty"


def test_a_missing_compiler_is_named_with_the_way_out(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problem_with(monkeypatch, "no-such-compiler").startswith(
        "the compiler 'no-such-compiler' does not exist; correct or unset PREP_KERNELS_COMPILER"
    )
    monkeypatch.delenv("PREP_KERNELS_COMPILER")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert load().problem.startswith("no C++ compiler (g++ or clang++); install one: apt install g++")


@needs_compiler
def test_a_launcher_before_the_compiler_is_left_out(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-cache g++" if shutil.which("g++") else "no-such-cache clang++")
    assert load().handle["answer"]() == 42


@pytest.mark.parametrize(
    "body, told",
    [
        ("exit 1", "broken failed: no output"),
        ("echo line one; echo 'x.cpp:1: fatal error: omp.h' >&2; exit 2", "broken failed: x.cpp:1: fatal error"),
        ("kill -9 $$", "broken failed: no output"),
        ("printf '\\377\\376 error'; exit 1", "broken failed: "),
        ("exit 0", "do not load"),
        ('while [ "$1" != -o ]; do shift; done; echo not a library > "$2"', "do not load"),
    ],
    ids=["fails", "explains", "killed", "no text", "makes nothing", "makes nonsense"],
)  # fmt: skip
def test_a_broken_compiler_is_told_in_one_line(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, told: str
) -> None:
    assert told in problem_with(monkeypatch, script(tmp_path / "broken", body))
    assert not list((tmp_path / "cache" / "kernels").glob(".building-*"))


def test_a_file_that_is_no_program_is_told_in_one_line(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "image").write_bytes(b"\x89PNG")
    (tmp_path / "image").chmod(0o755)
    assert "the compiler does not start: " in problem_with(monkeypatch, str(tmp_path / "image"))


def test_a_compiler_that_hangs_is_killed_with_its_children(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler driver waits for its passes; one that is left alive would hold the pipe, and us."""
    monkeypatch.setattr(compile, "COMPILE_TIMEOUT_S", 0.2)
    hanging = script(
        tmp_path / "hanging", f"echo $$ >> {tmp_path}/pids; sleep 60 & echo $! >> {tmp_path}/pids; wait"
    )
    assert problem_with(monkeypatch, hanging) == "the compiler takes longer than 0.2 s"
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert pids and all(ends_soon(pid) for pid in pids)


def ends_soon(pid: int) -> bool:
    """A killed process lives on until the system has a core to end it on."""
    if not hasattr(os, "pidfd_open"):
        return True
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended, _, _ = select.select([process], [], [], 20)
    os.close(process)
    return bool(ended)


# --- what the engine makes of it ---------------------------------------------------------------------------------

ANSWER = """
import json, os
from pathlib import Path
from engine import LLM, SamplingParams
with LLM("shop", max_model_len=128) as llm:
    output = llm.generate("How many apples", SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
maps = Path("/proc/self/maps").read_text() if os.path.exists("/proc/self/maps") else ""
files = {line.split()[-1] for line in maps.splitlines() if "/" in line}
runtimes = sorted(file for file in files if Path(file).name.startswith(("libgomp", "libomp", "libiomp")))
tokens = output[0].outputs[0].token_ids
print(json.dumps({"tokens": tokens, "runtimes": runtimes, "kernels": "kernels.so" in maps}))
"""


def answer(**environment: str) -> dict[str, object]:
    finished = subprocess.run(
        [sys.executable, "-c", ANSWER],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "2"} | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.mark.slow
@needs_compiler
def test_without_a_working_compiler_the_engine_says_the_same_through_sdpa(tmp_path: Path) -> None:
    """And with one there is a single OpenMP runtime in the process: two would fight over the cores."""
    with_kernels = answer()
    assert with_kernels["kernels"]
    if sys.platform == "linux":
        assert len(with_kernels["runtimes"]) == 1, with_kernels["runtimes"]
    broken = script(tmp_path / "broken", "echo internal compiler error; exit 1")
    without = answer(PREP_KERNELS_COMPILER=broken, PREP_CACHE=str(tmp_path))
    assert not without["kernels"] and without["tokens"] == with_kernels["tokens"]


@pytest.mark.parametrize(
    "environment, told",
    [
        ({"PREP_KERNELS_COMPILER": ""}, "switched off: PREP_KERNELS_COMPILER is empty"),
        ({"PREP_KERNELS_COMPILER": "no-such-compiler"}, "the compiler 'no-such-compiler' does not exist"),
        ({"PREP_CACHE": "/dev/null/below"}, "no place for the compiled kernels: "),
    ],
    ids=["off", "missing", "no cache"],
)
def test_doctor_has_one_line_and_the_engine_has_sdpa(
    environment: dict[str, str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.cli import doctor
    from engine.attention import backend
    from kernels import registry

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(build, "load_library", load)
    monkeypatch.setattr("kernels.compile_report.load_library", load)
    monkeypatch.setattr(registry, "unavailable", registry.unavailable.__wrapped__)
    check = doctor._cpu_kernels()
    assert check.status == "warn" and "attention falls back to SDPA" in check.text and told in check.text
    assert "\n" not in check.text
    import torch

    assert backend.get_backend(None, "cpu", torch.float32).name == "sdpa"
    shape = backend.AttentionShape(4, 2, 32, 16, torch.float32)
    for dtype in (torch.int8, torch.float8_e4m3fn):  # SDPA reads no quantised cache
        assert backend.get_backend(None, "cpu", dtype, shape).name == "reference"


# --- other processors and options ----------------------------------------------------------------------------------

PORTABLE = """
import sys, torch
from kernels.cpu import build, compile
replaced = {"-march=native": f"-march={sys.argv[1]}", "-O3": ""}
build.FLAGS = compile.FLAGS = tuple(part for flag in compile.FLAGS for part in replaced.get(flag, flag).split())
from kernels import registry
from kernels.check.run import check
assert build.load_library().problem is None, build.load_library().problem
from kernels.cpu.linear import _LANES
print(_LANES)
for each in registry.IMPLEMENTATIONS:
    if each.backend == "cpu":
        for dtype in (torch.float32, torch.bfloat16):
            report = check(each.op, "cpu", dtype=dtype)
            if report.failures or dtype == torch.float32 and not report.ok:
                print(report)
"""


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("march, lanes", [("x86-64-v2 -O0", 4), ("x86-64-v3 -mtune=znver3 -O2", 8)])
def test_the_kernels_are_right_on_older_processors(march: str, lanes: int, tmp_path: Path) -> None:
    """For znver3 GCC makes some multiply-adds two instructions: `multiply_add` keeps them the same for all tiles.

    A build for x86-64-v3 with default tuning, of the same lanes, splits nothing and is left out. Processors with 4
    lanes have no multiply-add, so there the optimiser has nothing to fuse.
    """
    import platform

    if platform.machine() != "x86_64" or (lanes == 8 and "avx2" not in Path("/proc/cpuinfo").read_text()):
        pytest.skip(f"this processor cannot run {march}")
    finished = subprocess.run(
        [sys.executable, "-c", PORTABLE, march],
        cwd=ROOT,
        env=os.environ | {"PREP_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == f"{lanes}\n"


@needs_compiler
def test_a_kernel_is_looked_up_in_the_form_that_the_library_names(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the library for ARM names forms."""
    monkeypatch.setattr(build, "load_library", load)
    assert build.function("answer", "", returns="l")() == 42
    choice = 'extern "C" const char* fastest_form(const char*) { return "better"; }'
    (small / "forms.cpp").write_text(f'extern "C" long better() {{ return 43; }}\n{choice}\n')
    assert build.function("answer", "", returns="l")() == 43


def test_files_for_arm_are_compiled_there_only_and_each_for_its_instructions(tmp_path: Path) -> None:
    on_x86, on_arm = (compile.sources(build.SOURCES, is_arm) for is_arm in (False, True))
    own = [source for source in on_arm if source not in on_x86]
    assert {source.stem.rpartition("_")[2] for source in own} == compile.ARM_FORMS.keys()
    options = {source.name: compile.flags(source, compile.PORTABLE_FLAGS)[-1] for source in own}
    assert options["int8_i8mm.cpp"] == "-march=armv8.2-a+dotprod+i8mm" and options["forms.cpp"] == "-Wall"
    assert "-march=native" not in compile.PORTABLE_FLAGS


def test_clones_share_one_compiled_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each clone has a PyTorch of its own, and with it the same OpenMP library under another path."""
    compiler = build.find_compiler()
    keys = []
    for clone, content in (("a", b"one"), ("b", b"one"), ("c", b"another")):
        library = tmp_path / clone / "libgomp.so.1"
        library.parent.mkdir()
        library.write_bytes(content)
        monkeypatch.setattr(build, "_openmp_runtime", lambda library=library: str(library))
        keys.append(build.build_key(compiler))
    assert keys[0] == keys[1] != keys[2]
