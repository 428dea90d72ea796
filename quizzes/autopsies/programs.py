"""Load a program under review, probe it, check a repair."""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from quizzes.autopsies.mutants import MUTANTS

FOLDER = Path(__file__).parent


class UnknownProgram(ValueError):
    """Raised if no folder has that name."""


@dataclass(frozen=True)
class Mutant:
    """A plausible but wrong repair, the check that must fail, and what is wrong with it."""

    check: str
    why: str
    source: str


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
    functions = {
        n: f for n, f in inspect.getmembers(probes, inspect.isfunction) if f.__module__ == probes.__name__
    }
    if name not in functions or name.startswith("_"):
        raise UnknownProgram(f"{folder} has no probe {name!r}; known: {', '.join(functions)}")
    return functions[name](load(read(folder), f"given_{folder}"), **args)


def checks(folder: str) -> dict[str, Callable[[ModuleType], None]]:
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


def run_checks(folder: str, source: str) -> list[CheckResult]:
    """Run every check on a repair, even after failures."""
    read(folder)
    results = []
    for name, check in checks(folder).items():
        why = ""
        try:
            check(load(source, f"repair_{folder}"))
        except AssertionError as error:
            why = str(error) or "the check failed"
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        results.append(CheckResult(name, (inspect.getdoc(check) or name).splitlines()[0], not why, why))
    return results


def mutants(folder: str) -> list[Mutant]:
    """Return the wrong repairs of a program. Raises ValueError if a diff does not fit the solution."""
    found = []
    for entry in re.split(r"^(?=check_)", MUTANTS[folder], flags=re.MULTILINE)[1:]:
        headline, _, diff = entry.partition("\n")
        check, _, why = headline.partition(": ")
        source = read(folder, "solution")
        for hunk in diff.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            old = "".join(line[1:] for line in lines if line[0] in " -")
            if source.count(old) != 1:
                raise ValueError(f"{headline}: {old!r} occurs {source.count(old)} times in the solution")
            source = source.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
        found.append(Mutant(check, why, source))
    return found
