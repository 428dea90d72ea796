"""Load a program under review, probe it, check a repair."""

import ast
import importlib
import inspect
import random
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from prep_common.sandbox import Guest, GuestError, GuestNotStarted, GuestStopped, Limits
from prep_common.text import counted
from quizzes.autopsies.mutants import MUTANTS
from quizzes.mutant_diffs import Mutant, apply_diffs

FOLDER = Path(__file__).parent
LIMITS = Limits(seconds=20, call_seconds=2, load_seconds=5, megabytes=1500)
"""Limits of learner code in Python. An endless loop ends long before the seconds of all checks are over."""
MAX_STOPS = 2
"""After so many stops at a limit, the remaining checks do not run: each would wait for the limit again."""
_WHY = 600
"""Characters of a failure message: it may quote a value of any size."""


class UnknownProgram(ValueError):
    """Raised if no folder has that name."""


@dataclass(frozen=True)
class CheckResult:
    """One check of a repair."""

    name: str
    says: str
    """Requirement, one sentence."""
    ok: bool
    why: str = ""
    """Observed behaviour if the check failed."""


def programs() -> list[str]:
    return sorted(path.parent.name for path in FOLDER.glob("*/given.py"))


def read(folder: str, part: str = "given") -> str:
    """Return the source of a part of a program. Raises UnknownProgram."""
    if folder not in programs():
        raise UnknownProgram(f"no program is called {folder!r}; known: {', '.join(programs())}")
    return (FOLDER / folder / f"{part}.py").read_text(encoding="utf-8")


def load(source: str, name: str = "program") -> ModuleType:
    """Return a new module made from our own source text, never a learner's. Raises any error of its top level."""
    module = ModuleType(name)
    sys.modules[name] = module  # dataclasses look their module up
    exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    return module


def probe(folder: str, name: str, args: dict[str, Any]) -> Any:
    """Run a probe on the given program. Raises any error of the program."""
    probes = importlib.import_module(f"{__package__}.{folder}.probes")
    functions = {
        n: f for n, f in inspect.getmembers(probes, inspect.isfunction) if f.__module__ == probes.__name__
    }
    if name not in functions or name.startswith("_"):
        raise UnknownProgram(f"{folder} has no probe {name!r}; known: {', '.join(functions)}")
    return functions[name](load(read(folder), f"given_{folder}"), **args)


class Program:
    """A repair in a guest process, as the checks see it: its functions and classes as attributes."""

    def __init__(self, guest: Guest, source: str) -> None:
        self.guest = guest
        self.rng = random.Random(source)
        """Draws sizes that follow from the repair's text: it cannot contain the answers for them."""

    def __getattr__(self, name: str) -> Any:
        return self.guest.get(name)


Check = Callable[[Program], None]


def calls(source: str) -> dict[str, str]:
    """Return the functions of a program and the classes with an __init__: {"Pool": "Pool(num_blocks)"}."""
    signatures = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            parts = node.body if isinstance(node, ast.ClassDef) else [node]
            for part in parts:
                if isinstance(part, ast.FunctionDef) and part.name in (node.name, "__init__"):
                    names = [arg.arg for arg in part.args.args if arg.arg != "self"]
                    signatures[node.name] = f"{node.name}({', '.join(names)})"
    return signatures


def not_mended(folder: str, source: str) -> str:
    """Return why no check can call a source that is still the given program, below any docstring; else ""."""
    mine, given = (text.split('"""', 2)[-1] for text in (source, read(folder)))
    has, wanted = calls(given), calls(read(folder, "solution"))
    lacks = [
        call
        for name, call in wanted.items()
        if has.get(name) != call
        and (name in has or f"class {name}" not in given)  # dataclasses have no __init__
    ]
    if mine.split() != given.split() or not lacks:
        return ""
    return f"this is still the given program, but the checks call {' and '.join(lacks)}"


def checks(folder: str) -> dict[str, Check]:
    """Return the checks of a program by name, in source order."""
    module = importlib.import_module(f"{__package__}.{folder}.checks")
    return {name: value for name, value in vars(module).items() if name.startswith("check_")}


@contextmanager
def refused(error: type[Exception], accepted: str) -> Iterator[None]:
    """Fail with the message `accepted` unless the block raises the error."""
    try:
        yield
    except error:
        return
    raise AssertionError(accepted)


def run_checks(
    folder: str, source: str, limits: Limits = LIMITS, names: Collection[str] = ()
) -> list[CheckResult]:
    """Run every check on a repair, even after failures, or those with these names.

    Each check gets a guest of its own. They share the seconds of `limits`. After MAX_STOPS stops, or one while the file
    was loaded, the rest does not run.
    """
    results = []
    left = _Left(limits)
    for name, check in checks(folder).items():
        if not names or name in names:
            why = left.not_run or _why_not(check, folder, source, left)
            results.append(CheckResult(name, requirement(check), not why, why))
    if not any(result.ok for result in results) and (why := not_mended(folder, source)):
        return [replace(result, why=why) for result in results]
    return results


def requirement(check: Check) -> str:
    """Return what a check requires, one sentence."""
    return (inspect.getdoc(check) or check.__name__).splitlines()[0]


def guest_for(folder: str, source: str, limits: Limits) -> Guest:
    """Return a guest that does not run yet, for a repair of a program."""
    imports = ("torch",) if "import torch" in read(folder) else ()
    return Guest({"program.py": source}, limits=limits, imports=imports, own=(), load=False)


@dataclass
class _Left:
    """Limits left for the further checks of a repair, and stops so far."""

    limits: Limits
    num_stopped: int = 0
    not_run: str = ""
    """Reason why no further check runs; empty while they do."""

    def count(self, *, is_stopped: bool, is_loaded: bool, seconds: float) -> None:
        """Count a check: whether it was stopped, whether the file was loaded, seconds that are left."""
        self.limits = replace(self.limits, seconds=seconds)
        self.num_stopped += is_stopped
        if seconds <= 0:
            self.not_run = "not run: the checks before it used up the time"
        elif self.num_stopped == MAX_STOPS or is_stopped and not is_loaded:
            self.not_run = f"not run: your code was stopped {counted(self.num_stopped, 'time')} before"


def _why_not(check: Check, folder: str, source: str, left: _Left) -> str:
    """Return why a repair fails a check, "" if it passes. Count it in what is left."""
    is_stopped = is_loaded = False
    seconds = left.limits.seconds
    try:
        with guest_for(folder, source, left.limits) as guest:
            try:
                guest.load()
                is_loaded = True
                check(Program(guest, source))
            finally:
                seconds = guest.seconds_left
        why = ""
    except AssertionError as error:
        why = str(error) or "the check failed"
    except GuestError as error:
        why = str(error)
    except GuestNotStarted as stopped:
        why = stopped.told
        left.not_run = "not run: the process for your code did not start"
    except GuestStopped as stopped:
        why, is_stopped = stopped.told, True
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    left.count(is_stopped=is_stopped, is_loaded=is_loaded, seconds=seconds)
    return why[:_WHY]


def mutants(folder: str) -> list[Mutant]:
    """Return the wrong repairs of a program. Raises ValueError if a diff does not fit the solution."""
    return apply_diffs(MUTANTS[folder], read(folder, "solution"))
