"""`prep doctor`: check that the installation is complete and the engine runs on this machine; `prep version`.

Imports wait until a check needs them: a missing library is a failed check.
"""

from __future__ import annotations

import errno
import importlib.metadata
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer
from rich.markup import escape

from app.cli import terminal
from app.cli.options import JsonOption
from app.cli.test import TOOLS
from prep_common.text import counted

if TYPE_CHECKING:
    from engine.llm import LLM

LIBRARIES = {
    name: name
    for name in "torch numpy safetensors tokenizers jinja2 huggingface_hub rich tqdm psutil pydantic simpleeval "
    "platformdirs fsrs".split()
} | {"yaml": "pyyaml"}
"""Import name -> distribution."""
REINSTALL = "rm -rf .venv && ./prep doctor   (in the checkout), or pip install -e . in your own environment"
"""For libraries that are missing or do not load. Nothing else is a reason to remove an environment that works."""
TEST = "prep test --fast   (says which part does not work)"
FREE = "free disk space, or make the place writable that the message names"
NO_PLACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)
RESTORE = "git stash push -- engine/zoo/models/shop   (restores the shipped weights if they were changed; keeps yours)"
LEAST_MEMORY_GB, LEAST_DISK_GB = 1.0, 0.5
GOLDEN, LEAST_RIGHT = 16, 0.75
"""Number of test answers, and the share that must be right (`prep zoo eval shop -n 400`: 95 %)."""


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    status: Literal["ok", "warn", "fail"]
    text: str
    fix: str = ""


def version_of(distribution: str = "prep-workbench") -> str | None:
    """Return the installed version of a distribution, read without importing it; None if it is missing."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def version() -> None:
    """Print the versions of prep, Python and PyTorch, without importing them."""
    print(f"prep {version_of() or '(not installed: running from the source tree)'}")
    print(f"python {platform.python_version()}")
    print(f"torch {version_of('torch') or 'missing'}")


def doctor(json: JsonOption = False) -> None:
    """Check this installation and machine; exit code 3 if a part needs repair.

    Loads the shipped model, generates an answer, and compares it with the same answer from
    a batch.

    Example: prep doctor --json
    """
    checks: list[Check] = []
    failed: list[Check] = []
    for check in run():
        checks.append(check)
        failed += [check] if check.status == "fail" else []
        if not json:  # the last line has the fix of the first failure
            _print(check, with_fix=not failed or check.fix != failed[0].fix)
    if json:
        terminal.print_json({"healthy": not failed, "checks": [asdict(check) for check in checks]})
    elif failed:
        terminal.next_command(failed[0].fix or TEST, f"{counted(len(failed), 'problem')} to solve")
    else:
        terminal.next_command("prep demo", "the installation is complete")
    raise typer.Exit(terminal.ENVIRONMENT if failed else 0)


def run() -> Iterator[Check]:
    """Yield the checks as they finish; an exception in one is a failed check, never a traceback."""
    checks = (_python, _libraries, _torch, _cpu_kernels, _machine, _disk, _terminal, _test_tools)
    can_load = True
    for check in (*checks, _bank, _claims, _state, _judge, _worker, _sandbox):
        result = _guarded(check)
        can_load = can_load and not (check is _cpu_kernels and result.status == "fail")
        yield result
    if can_load:  # else it fails for the reason that was given
        yield from _engine()


def _guarded(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        return Check("fail", f"{check.__name__.strip('_')}: {type(error).__name__}: {error}", _fix(error))


def _fix(error: Exception) -> str:
    """Return what to do about an exception that no check foresaw."""
    if isinstance(error, OSError) and error.errno in NO_PLACE:
        return FREE
    return REINSTALL if isinstance(error, ImportError | OSError) else TEST


def _print(check: Check, with_fix: bool) -> None:
    style = {"ok": "green", "warn": "yellow", "fail": "bold red"}[check.status]
    terminal.say(f"[{style}]{check.status:<4}[/] {escape(check.text)}")
    if with_fix and check.fix and check.status != "ok":
        terminal.say(f"     [dim]{escape(check.fix)}[/]", whole=True)


def _python() -> Check:
    text = f"python {platform.python_version()}, prep {version_of() or 'from the source tree'}"
    return Check("ok", f"{text}, {sys.prefix}")


def _libraries() -> Check:
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        return Check("fail", f"missing libraries: {', '.join(missing)}", REINSTALL)
    return Check("ok", f"all {len(LIBRARIES)} libraries are installed")


def _torch() -> Check:
    import torch

    text = f"torch {torch.__version__}, {torch.get_num_threads()} CPU threads"
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        return Check("ok", f"{text}, {card.name} with {card.total_memory / 2**30:.0f} GiB")
    return Check("ok", f"{text}, no GPU (none is needed)")


def _cpu_kernels() -> Check:
    """Check the C++ kernels; the first use compiles them."""
    from kernels.compile_report import load_library

    try:
        built = load_library()
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        return Check("fail", problem, fix)
    if built.problem is not None:
        problem, _, fix = built.problem.partition("; ")
        named = "PREP_KERNELS_COMPILER=PATH names a compiler"
        fix = fix or f"{named}; without the variable, g++ or clang++ is taken"
        return Check("warn", f"no C++ kernels, attention falls back to SDPA: {problem}", fix)
    if built.build_seconds:
        return Check("ok", f"C++ kernels compiled in {built.build_seconds:.1f} s, kept in {built.path}")
    return Check("ok", f"C++ kernels from {built.path}")


def _machine() -> Check:
    import psutil

    free = psutil.virtual_memory().available / 1e9
    text = f"{os.cpu_count()} cores, {platform.machine()}, {free:.1f} GB of memory free"
    if free < LEAST_MEMORY_GB:
        return Check("warn", text, "close other programs: the engine and torch take about 1 GB")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > (os.cpu_count() or 1):
        return Check("warn", f"{text}, load {load:.1f}", "close other programs before measuring: times vary")
    return Check("ok", text)


def _disk() -> Check:
    free = shutil.disk_usage(Path.cwd()).free / 1e9
    text = f"{free:.1f} GB free on the disk of {Path.cwd()}"
    if free < LEAST_DISK_GB:
        return Check("warn", text, "traces and downloads may not fit")
    return Check("ok", text)


def _terminal() -> Check:
    console = terminal.out()
    wide = f"{console.width} columns" if console.is_terminal else "a pipe"
    kind = f"{wide}, {'live' if terminal.is_live(console) else 'plain lines'}"
    if not terminal.unicode_ok():
        return Check("warn", f"terminal without UTF-8 ({kind}): ASCII marks", "export PYTHONIOENCODING=utf-8")
    return Check("ok", f"terminal with UTF-8, {kind}")


def _test_tools() -> Check:
    missing = [name for name in TOOLS if find_spec(name) is None]
    if missing:
        return Check("ok", "test tools not installed: the first ./prep test installs them")
    return Check("ok", "test tools installed")


def _bank() -> Check:
    from quizzes.question_bank import load_bank

    bank = load_bank()
    text = f"bank: {counted(len(bank), 'question')} in {len({entry.topic for entry in bank})} topics"
    if bank.problems:
        return Check("warn", f"{text}, {len(bank.problems)} invalid: {bank.problems[0]}", "prep bank lint")
    return Check("ok" if len(bank) else "fail", f"{text}, 0 invalid", "prep bank lint")


def _claims() -> Check:
    from quizzes.claims.claim_list import load_claims

    claims = load_claims()
    text = f"claims: {len(claims):,}"
    if claims.problems:
        invalid = f"{len(claims.problems)} invalid: {claims.problems[0]}"
        return Check("warn", f"{text}, {invalid}", "prep claims list")
    return Check("ok", f"{text}, 0 invalid")


def _state() -> Check:
    """Check the learner's file, without creating it."""
    from prep_common.paths import state_path, why_unwritable
    from quizzes.state import State, StateError
    from quizzes.state.backup import backups
    from quizzes.state.schema import SCHEMA

    path, folder = state_path(), state_path().parent
    while not folder.exists():
        folder = folder.parent
    if reason := why_unwritable(folder):
        problem = f"state: {path} cannot be written: {reason}"
        return Check("fail", problem, "PREP_HOME=FOLDER names another folder")
    if not path.exists():
        return Check("ok", f"state: none yet, the first answer creates {path}")
    try:
        with State.open() as state:
            attempts = state.count("attempt")
    except StateError as error:
        return Check("fail", str(error), error.next_step)
    copies = backups(path)
    hours = (time.time() - copies[0].stat().st_mtime) / 3600 if copies else 0.0
    backup = f"backup {hours:.0f} h old" if copies else "no backup yet"
    return Check("ok", f"state {path} (schema {SCHEMA}, {counted(attempts, 'attempt')}, {backup})")


def _judge() -> Check:
    """Check the judge's settings; nothing is sent."""
    from quizzes.free_text.endpoint import JudgeError
    from quizzes.free_text.settings import load

    try:
        judge = load()
    except JudgeError as error:
        return Check("warn", f"judge: {error}", "prep judge off")
    if judge is None:
        return Check("ok", "judge: off; you mark your prose, probes check it")
    text = f"judge: {judge.model} at {judge.url}"
    if judge.counts:
        return Check("ok", f"{text}, its marks count")
    return Check("warn", f"{text}, its marks do not count: {judge.why_not()}", "prep judge test")


def _worker() -> Check:
    """Run one experiment, uncached, in the process that questions use."""
    from quizzes.experiments.runner import Runner

    with Runner() as runner:
        outcome = runner.run("batching.static_vs_continuous", {}, fresh=True)
    return Check("ok", f"experiments run: {outcome.seconds:.2f} s in a worker with limits")


def _sandbox() -> Check:
    """Name the layers that confine learner code; without Landlock its machine code could read the solutions."""
    from prep_common.sandbox import confinement

    layers = confinement()
    text = f"programs to mend run confined: {', '.join(layers)}"
    if any(layer.startswith("Landlock") for layer in layers):
        return Check("ok", text)
    return Check("warn", f"{text}; the kernel offers no more", "check only programs that you trust")


def _golden_answers(llm: LLM) -> Check:
    """Compare answers about unseen shops with the corpus's right answers: a damaged model fails."""
    from app.cli.zoo_eval import engine_answers
    from engine.zoo.evaluate import evaluate

    report = evaluate("shop", GOLDEN, 0, "test", lambda prompts: engine_answers(llm, prompts, bar=False))
    right, total = report.overall.right, report.overall.total
    text = f"{right} of {total} answers about unseen shops are right"
    if right >= LEAST_RIGHT * total:
        return Check("ok", text)
    return Check("fail", f"{text}, at least {LEAST_RIGHT:.0%} expected", RESTORE)


def _engine() -> Iterator[Check]:
    """Load the shipped model and generate; stop at the first failure."""
    try:
        from engine.exec.uniproc import worker_of
        from engine.llm import LLM
        from engine.sampling_params import SamplingParams
        from engine.zoo.shop import open_shop

        start = time.perf_counter()
        llm = LLM("shop")
        core = llm.llm_engine.engine_core
        loaded = time.perf_counter() - start
        blocks, worker = core.config.cache.num_blocks, worker_of(core)
        yield Check("ok", f"model shop loads in {loaded:.2f} s; KV cache of {blocks:,} blocks")
        yield Check("ok", f"attention backend {worker.backend.name}: {worker.why_backend}")
        shop = open_shop()
        opening = {"role": "system", "content": shop.system}
        chats = [[opening, {"role": "user", "content": question}] for question in shop.questions]
        params = SamplingParams(temperature=0, max_tokens=32)
        start = time.perf_counter()
        alone = llm.chat(chats[0], params, use_tqdm=False)[0].outputs[0]
        seconds = time.perf_counter() - start
        text = f"{shop.questions[0]!r} -> {alone.text!r}: {counted(len(alone.token_ids), 'token')} in {seconds:.2f} s"
        yield Check("ok" if alone.token_ids else "fail", text, TEST)
        yield _golden_answers(llm)
        batch = llm.chat(chats, params, use_tqdm=False)
        same = batch[0].outputs[0].token_ids == alone.token_ids
        hit = sum(output.num_cached_tokens for output in batch)
        tokens = "the same tokens" if same else "OTHER tokens"
        text = f"a batch of {len(batch)} gives {tokens}, {hit} prompt tokens from the prefix cache"
        fix = "prep test tests/engine   (the engine computes wrong results on this machine)"
        yield Check("ok" if same else "fail", text, fix)
        llm.shutdown()
    except Exception as error:
        fix = "unset PREP_KERNELS" if "PREP_KERNELS=" in str(error) else _fix(error)
        yield Check("fail", f"the engine does not run: {type(error).__name__}: {error}", fix)
