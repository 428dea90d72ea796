"""Compiling in the background: the first process computes with torch to its end, and the next one finds the kernels."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from kernels import registry
from kernels.cpu import background, build

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
COMPILER = """#!/bin/sh
echo "$PPID" >> "{folder}/calls"
echo "$PPID" > "{folder}/arrivals"
read line < "{folder}/gate"
if [ -e "{folder}/broken" ]; then cat "{folder}/broken"; exit 1; fi
exec {compiler} "$@"
"""
load = build.load_library.__wrapped__
"""As `build.load_library`, but anew each time: another process."""


class Compiler:
    """One function in place of all kernels, an empty cache, and a compiler that waits for `go_on`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "cache" / "kernels"
        self._gate, self._arrivals = (self._pipe(name) for name in ("gate", "arrivals"))
        self.path = folder / "compiler"
        self.path.write_text(COMPILER.format(folder=folder, compiler=build.find_compiler()))
        self.path.chmod(0o755)
        self.sources = folder / "sources"
        self.sources.mkdir()
        (self.sources / "answer.cpp").write_text('extern "C" long answer() { return 42; }\n')

    def _pipe(self, name: str) -> int:
        os.mkfifo(self.folder / name)
        return os.open(self.folder / name, os.O_RDWR)  # with both ends here, no one waits to open it

    def go_on(self, calls: int = 2) -> None:
        """Let this many calls run, each after it has begun: one compiles the file, one links."""
        os.write(self._gate, b"go on\n" * calls)

    def arrival(self) -> int:
        """Wait for a call, and return the process that made it."""
        assert select.select([self._arrivals], [], [], 60)[0], "no compiler begins"
        return int(os.read(self._arrivals, 100).split()[0])

    def wait(self) -> None:
        """Return when no process compiles."""
        for lock in self.cache.glob("*.lock"):
            with background.locked(lock):
                pass

    def num_calls(self) -> int:
        return len((self.folder / "calls").read_text().split())

    def close(self) -> None:
        self.go_on(20)
        self.wait()
        os.close(self._gate)
        os.close(self._arrivals)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    made = Compiler(tmp_path)
    monkeypatch.setattr(build, "SOURCES", made.sources)
    monkeypatch.setenv("PREP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PREP_KERNELS_COMPILER", str(made.path))
    monkeypatch.setenv(background.VARIABLE, "background")
    yield made
    made.close()


def test_the_first_process_computes_with_torch_and_the_next_one_finds_the_kernels(
    compiler: Compiler, capfd: pytest.CaptureFixture[str]
) -> None:
    first = load()
    assert first.handle is None and first.is_compiling and "being compiled" in first.problem
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 2
    assert "in the background" in err and "the next start uses the kernels" in err
    compiler.go_on()
    compiler.wait()
    capfd.readouterr()
    second = load()
    assert second.handle["answer"]() == 42 and second.build_seconds == 0
    assert capfd.readouterr() == ("", "")


def test_a_process_that_began_with_torch_keeps_it(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bits would change in the middle of a request."""
    monkeypatch.setattr(build, "load_library", cache(load))
    monkeypatch.setattr(registry, "unavailable", cache(registry.unavailable.__wrapped__))
    before = registry.unavailable("cpu")
    assert "being compiled" in before
    compiler.go_on()
    compiler.wait()
    assert load().handle is not None
    assert registry.unavailable("cpu") == before
    assert registry.environment_of_ranks() == {"PREP_KERNELS_COMPILER": ""}, "nor do its ranks use them"


def test_a_cache_that_cannot_be_written_is_told(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREP_CACHE", str(compiler.path / "below"))
    assert not load().is_compiling
    [line] = capfd.readouterr().err.splitlines()
    assert "computing with torch, which is slower: no place" in line and "set PREP_CACHE" in line


def test_starts_during_a_compile_start_no_second_one(
    compiler: Compiler, capfd: pytest.CaptureFixture[str]
) -> None:
    assert load().is_compiling
    assert "compiling the CPU kernels in the background (once" in capfd.readouterr().err
    assert load().is_compiling
    assert "still being compiled, as an earlier start began" in capfd.readouterr().err
    compiler.go_on()
    compiler.wait()
    assert load().handle is not None
    assert compiler.num_calls() == 2, "one file, one link"


def test_a_process_that_waits_takes_what_the_other_one_compiled(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load().is_compiling
    monkeypatch.setenv(background.VARIABLE, "wait")
    told: list[str] = []

    def tell(text: str) -> None:  # before it waits
        told.append(text)
        compiler.go_on()

    monkeypatch.setattr(background, "_print", tell)
    waited = load()
    assert waited.handle["answer"]() == 42 and waited.build_seconds > 0
    assert compiler.num_calls() == 2
    assert told == ["waiting for the process that compiles the CPU kernels"]


def test_a_compiler_that_fails_is_not_tried_again_until_a_process_waits(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (compiler.folder / "broken").write_text("error: broken")
    assert load().is_compiling
    compiler.go_on(1)
    compiler.wait()
    capfd.readouterr()
    again = load()
    assert again.problem == "compiler failed: error: broken" and not again.is_compiling
    told = capfd.readouterr().err
    assert told.count("\n") == 1 and "error: broken" in told and "prep doctor" in told
    assert compiler.num_calls() == 1
    (compiler.folder / "broken").unlink()
    monkeypatch.setenv(background.VARIABLE, "wait")
    compiler.go_on()
    assert load().handle["answer"]() == 42
    assert not list(compiler.cache.glob("*.failed"))


@pytest.mark.parametrize(
    "said",
    ["fatal error: Killed signal terminated program cc1plus", "Fatal error: a.s: 'No space left on device'"],
)
def test_a_compiler_without_memory_or_space_is_tried_again(compiler: Compiler, said: str) -> None:
    (compiler.folder / "broken").write_text(said)
    assert load().is_compiling
    compiler.go_on(1)
    compiler.wait()
    assert not list(compiler.cache.glob("*.failed")) and load().is_compiling


def test_a_named_compiler_that_does_not_exist_is_announced(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREP_KERNELS_COMPILER", "/nonexist")
    assert load().handle is None
    told = capfd.readouterr().err
    assert told.count("\n") == 1 and told.endswith("does not exist; correct or unset PREP_KERNELS_COMPILER\n")


def test_a_process_that_waits_is_told_why_there_are_no_kernels(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(background.VARIABLE, "wait")
    (compiler.folder / "broken").write_text("error: broken")
    compiler.go_on(1)
    assert load().problem == "compiler failed: error: broken"
    assert "no CPU kernels, computing with torch, which is slower: compiler failed" in capfd.readouterr().err
    monkeypatch.setenv("PREP_KERNELS_COMPILER", "")
    assert load().problem == "switched off: PREP_KERNELS_COMPILER is empty"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_compile_that_is_ended_leaves_no_library_and_the_next_start_begins_again(
    compiler: Compiler, number: signal.Signals
) -> None:
    load()
    os.kill(compiler.arrival(), number)
    compiler.wait()
    assert not list(compiler.cache.glob("*/kernels.so")) and not list(compiler.cache.glob("*.failed"))
    if number == signal.SIGTERM:
        assert [path.suffix for path in compiler.cache.iterdir()] == [".lock"]
    assert load().is_compiling
    compiler.go_on(3)  # the compiler that SIGKILL left behind takes one, too
    compiler.wait()
    assert load().handle["answer"]() == 42


def test_other_sources_do_not_wait_for_a_process_that_compiles(compiler: Compiler) -> None:
    load()
    compiler.arrival()
    (compiler.sources / "answer.cpp").write_text('extern "C" long answer() { return 43; }\n')
    assert load().is_compiling
    compiler.arrival()
    compiler.go_on(4)
    compiler.wait()
    assert load().handle["answer"]() == 43


@pytest.mark.slow
def test_ctrl_c_ends_a_process_that_compiles_and_leaves_nothing_half_done(compiler: Compiler) -> None:
    code = (
        f"from pathlib import Path; from kernels.cpu import build; build.SOURCES = Path({str(compiler.sources)!r});"
        "build.load_library()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {background.VARIABLE: "wait"},
        stderr=subprocess.PIPE,
    )
    compiler.arrival()
    process.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in process.communicate(timeout=60)[1]
    assert [path.suffix for path in compiler.cache.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    "forms, waits", [("cpu", True), ("sample=reference, linear=cpu", True), ("linear=reference", False)]
)
def test_a_process_that_is_told_to_use_a_form_in_cpp_waits(
    forms: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(background.VARIABLE, "background")
    monkeypatch.setenv("PREP_KERNELS", forms)
    assert background.must_wait() == waits


def test_an_unknown_value_of_the_variable_is_refused(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(background.VARIABLE, "later")
    with pytest.raises(ValueError, match="PREP_KERNELS_BUILD='later' is not valid; unset"):
        load()


ANSWER = """
import json
from engine import LLM, SamplingParams
from kernels import registry
with LLM("shop", max_model_len=128) as llm:
    [output] = llm.generate("How many apples", SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
print(json.dumps([output.outputs[0].token_ids, registry.unavailable("cpu")]))
"""


@pytest.mark.slow
def test_the_first_answer_on_a_machine_needs_no_compiler(tmp_path: Path) -> None:
    """It has the tokens of the kernels that are compiled meanwhile."""
    environment = os.environ | {"PREP_CACHE": str(tmp_path), background.VARIABLE: "background"}

    def answer() -> list[object]:
        run = subprocess.run(
            [sys.executable, "-c", ANSWER], cwd=ROOT, env=environment, capture_output=True, check=True
        )
        return json.loads(run.stdout)

    first = answer()
    [lock] = (tmp_path / "kernels").glob("*.lock")
    with background.locked(lock):
        pass
    second = answer()
    assert "being compiled" in str(first[1]) and second[1] is None
    assert first[0] == second[0]
