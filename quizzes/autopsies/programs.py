"""Load a program under review, probe it, check a repair."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parent


class UnknownProgram(ValueError):
    """Raised if no folder has that name."""


class Mutant:
    """A plausible but wrong repair: the solution with texts replaced that each occur once."""

    def __init__(self, name: str, check: str, why: str, *changes: tuple[str, str]) -> None:
        self.name, self.check, self.why, self.changes = name, check, why, changes

    def source(self, solution: str) -> str:
        for old, new in self.changes:
            if solution.count(old) != 1:
                raise ValueError(f"{self.name}: {old!r} occurs {solution.count(old)} times in the solution")
            solution = solution.replace(old, new)
        return solution


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
    """Return a new module made from source text. Raises any error of the program's top level."""
    module = ModuleType(name)
    sys.modules[name] = module  # dataclasses look their module up
    exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    return module


def probe(folder: str, name: str, args: dict[str, Any]) -> Any:
    """Run a probe on the given program. Raises any error of the program."""
    probes = importlib.import_module(f"{__package__}.{folder}.probes")
    function = getattr(probes, name, None)
    if function is None or name.startswith("_"):
        known = [
            n for n, f in inspect.getmembers(probes, inspect.isfunction) if f.__module__ == probes.__name__
        ]
        raise UnknownProgram(f"{folder} has no probe {name!r}; known: {', '.join(known)}")
    return function(load(read(folder), f"given_{folder}"), **args)


def checks(folder: str) -> list[tuple[str, Callable[[ModuleType], None]]]:
    """Return the checks of a program in source order."""
    module = importlib.import_module(f"{__package__}.{folder}.checks")
    found = [
        (name, function)
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if name.startswith("check_")
    ]
    return sorted(found, key=lambda pair: pair[1].__code__.co_firstlineno)


def run_checks(folder: str, source: str) -> list[CheckResult]:
    """Run every check on a repair, even after failures."""
    read(folder)
    results = []
    for name, check in checks(folder):
        says = (inspect.getdoc(check) or name).splitlines()[0]
        try:
            check(load(source, f"repair_{folder}"))
        except Exception as error:
            results.append(CheckResult(name, says, False, _tell(error)))
        else:
            results.append(CheckResult(name, says, True))
    return results


def mutants(folder: str) -> tuple[Mutant, ...]:
    """Return the wrong repairs of a program, each with the check that must fail."""
    found: tuple[Mutant, ...] = importlib.import_module(f"{__package__}.{folder}.mutants").MUTANTS
    return found


def _tell(error: Exception) -> str:
    if isinstance(error, AssertionError):
        return str(error) or "the check failed"
    return f"{type(error).__name__}: {error}"
