"""Check a learner's code: named checks in this process, the code in a process of its own (`prep_common/sandbox`).

    @check("07.1")
    def blocks_are_distinct(learner: Learner) -> None:
        \"\"\"No block is handed out twice.\"\"\"
        pool = learner.new("BlockAllocator", 8)
        ...
        raise Failed("take(2) returned block 3 again", example="take(3); take(2)")

Learner code can only return values, never a verdict: the checks run where it cannot reach.
"""

from __future__ import annotations

import importlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from lessons.course.lesson_files import BugHunt, Exercise, Lab, Lesson, find_exercise
from lessons.course.native_guest import NotCompiled, compiled_guest
from prep_common.sandbox import Guest, GuestError, GuestStopped, Limits
from prep_common.sandbox import callback as host_callback
from quizzes.autopsies.programs import LIMITS, MAX_STOPS

MEGABYTES = 1_536
SLOW_CALLS = {"cuda": 10.0, "triton": 10.0}
"""Limit of one call and of loading in the interpreters of kernels."""
PATIENCE = 8
"""Factor of the limits of time if the machine may be loaded."""
SPARE_WORK = 200
"""Steps that a call may take more in a larger object, whatever its bound."""
LONGEST_WHY = 800
"""Characters of the reason for a failure."""
CheckFunction = Callable[["Learner"], None]
Case = TypeVar("Case")
_MEND_IT = "change it as the text at its top asks, then check again"
_CHECKS: dict[str, list[CheckFunction]] = defaultdict(list)


class Failed(AssertionError):
    """A check's refusal: the reason in one sentence, the smallest counter-example, its run as a trace.

    traces: the learner's run, the right one, and the first step that differs.
    """

    def __init__(
        self, why: str, *, example: object = None, traces: tuple[Path, Path, int] | None = None
    ) -> None:
        super().__init__(why)
        self.why, self.example, self.traces = why, example, traces


class Learner:
    """The learner's module in the guest process."""

    def __init__(self, guest: Guest, language: str = "python") -> None:
        self._guest = guest
        self.language = language
        self.has_walls, self.launch_options = False, 0
        """Options of calls of a compiled function: `native.walls`, `native.watched`."""

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the cell. Raises GuestError, GuestStopped."""
        return self._guest.call(name, *args, **kwargs)

    def new(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return a handle to a new object: `handle.take(3)`, `handle.get("num_free")`."""
        return self._guest.new(name, *args, **kwargs)

    def get(self, name: str) -> Any:
        """Return a value of the cell; a function or class as a handle."""
        return self._guest.get(name)

    def function(self, name: str) -> Callable[..., Any]:
        return partial(self.call, name)

    def callback(self, function: Callable[..., Any]) -> Any:
        """Return an argument that the learner's code can call; it runs in this process, which may count calls."""
        return host_callback(function)

    def costs(self, target: Any, calls: Sequence[tuple[Any, ...]], last: int) -> list[int]:
        """Make calls of an object, (name, arguments); return the work of each of the last: `lessons/given/work.py`."""
        found = self.call("lessons.given.work:costs", target, [list(call) for call in calls], last)
        return [int(each) for each in found]

    def put(self, value: Any) -> Any:
        """Return a handle to a copy in the learner's process, to see whether an argument is changed: `content()`."""
        return self._guest.put(value)


@dataclass(frozen=True)
class CheckResult:
    """One check of an exercise."""

    name: str
    says: str
    """Requirement, one sentence."""
    ok: bool
    why: str = ""
    example: str = ""
    trace: str = ""
    """The learner's run of the example, for `prep app --trace`."""
    right_trace: str = ""
    step: int = 0
    """First step in which the two runs differ."""


@dataclass(frozen=True)
class Report:
    """All checks of an exercise."""

    exercise: str
    results: list[CheckResult] = field(default_factory=list)
    problem: str = ""
    """Reason why no check could run: not written yet, a syntax error, a missing name."""
    is_stub: bool = False
    output: str = ""
    """Shortened output of the learner's code."""
    is_saved: bool = True
    """False if the learner's state could not be written."""

    @property
    def ok(self) -> bool:
        return bool(self.results) and not self.problem and all(result.ok for result in self.results)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        data = {key: value for key, value in data.items() if key != "ok"}
        return cls(**{**data, "results": [CheckResult(**result) for result in data["results"]]})


def check(exercise: str) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check of an exercise. The first line of its docstring is the requirement."""

    def register(function: CheckFunction) -> CheckFunction:
        _CHECKS[exercise].append(function)
        return function

    return register


def checks(exercise: str) -> list[CheckFunction]:
    """Return the checks of an exercise in source order."""
    lesson, _ = find_exercise(exercise)
    importlib.import_module(f"lessons.{lesson.name}.checks")
    shared = _CHECKS[lesson.checks_id] if isinstance(lesson, Lab) and lesson.checks_id != exercise else []
    return [*shared, *_CHECKS[exercise]]


def smallest(cases: Iterable[Case], run: Callable[[Case], object]) -> None:
    """Run the cases, the smallest first; the first failure carries its case as the counter-example."""
    for case in cases:
        try:
            run(case)
        except GuestError as error:
            if error.is_stub:
                raise
            raise Failed(str(error), example=case) from None
        except AssertionError as error:
            if isinstance(error, Failed) and error.example is not None:
                raise
            raise Failed(
                str(error) or "the result is wrong", example=case, traces=getattr(error, "traces", None)
            ) from None


def fewest(items: list[Case], fails: Callable[[list[Case]], bool], tries: int = 200) -> list[Case]:
    """Return few of the items, in order, that still fail: leave out runs of them, long ones first."""
    size = max(1, len(items) // 2)
    while size and tries:
        at = 0
        while at < len(items) and tries:
            tries -= 1
            if fails(left := items[:at] + items[at + size :]):
                items = left
            else:
                at += size
        size //= 2
    return items


def run_fewest(
    items: list[Case],
    run: Callable[[list[Case]], object],
    tries: int = 60,
    shown: Callable[[list[Case]], str] = repr,
) -> None:
    """Run the items; if that fails, run the fewest of them that still fail, so that the failure tells of these.

    shown: text of the items, for failures of `run` that have no example.
    """

    def fails(some: list[Case]) -> bool:
        try:
            run(some)
        except GuestError as error:
            if error.is_stub:
                raise
            return True
        except Failed:
            return True
        return False

    if not fails(items):
        return
    few = fewest(items, fails, tries)
    try:
        run(few)
    except GuestError as error:
        raise Failed(str(error), example=shown(few)) from None
    raise Failed("two runs of the same items differ", example=shown(few))


def refused(example: object, call: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Raise Failed unless the call raises ValueError."""
    try:
        call(*args, **kwargs)
    except ValueError:
        return
    except GuestError as error:
        if error.is_stub:
            raise
        raise Failed(f"this raises {error}; it must raise ValueError", example=example) from None
    raise Failed("this must raise ValueError", example=example)


def same(what: str, yours: Any, right: Any, said: Sequence[str], within: float = 1e-9) -> None:
    """Raise Failed unless two values are equal, floats within a relative error.

    said: the calls before; the example shows the last of them.
    """
    if isinstance(right, float):
        is_number = isinstance(yours, int | float) and not isinstance(yours, bool)
        good = is_number and (yours == right or abs(yours - right) <= within * (1 + abs(right)))
    else:
        good = yours == right and isinstance(yours, bool) is isinstance(right, bool)
    if not good:
        raise Failed(f"{what} {yours!r}; by the rules it is {right!r}", example="; ".join(said[-14:]))


def constant(
    work_at: Callable[[int], Sequence[int]], contract: str, what: str, sizes: tuple[int, int]
) -> None:
    """Raise Failed if the least work of a call is more than twice as much at the second size as at the first.

    work_at: work of some calls of one kind at a size. The least of them counts: a container that grows copies itself
    now and then. contract: the sentence with the bound. what: the thing of which there are so many.
    """
    small, large = (min(work_at(size)) for size in sizes)
    if large > 2 * small + SPARE_WORK:
        raise Failed(
            f"{contract!r}, but the work grows from {small:,} to {large:,} steps",
            example=f"{sizes[0]:,} {what}, then {sizes[1]:,}",
        )


def run_checks(exercise: str, source: str, *, only: str | None = None, is_patient: bool = False) -> Report:
    """Run the checks of an exercise on a cell's source, all of them even after failures.

    only: name of the one check to run. A stopped process is started again for the next check, once. is_patient: any
    number of times, and the limits of time are long.
    """
    lesson, facts = find_exercise(exercise)
    if isinstance(lesson, Lab) and not source.strip():
        return Report(exercise, problem=f"the file is empty; prep lab reset {exercise} starts a new one")
    if isinstance(lesson, BugHunt):
        return _check_repair(lesson, source, only)
    language = lesson.language if isinstance(lesson, Lab) else "python"
    results: list[CheckResult] = []
    guest: Guest | None = None
    num_stopped = 0
    output = ""
    try:
        for function in checks(exercise):
            if only not in (None, function.__name__):
                continue
            if num_stopped == MAX_STOPS and not is_patient:
                results.append(_failed(function, f"not run: your code was stopped {MAX_STOPS} times before"))
                continue
            if guest is None:
                guest = _guest(lesson, facts, source, PATIENCE if is_patient else 1)
                in_python = language in ("python", "triton")
                missing = [name for name in facts.objects if in_python and not guest.has(name)]
                if missing:
                    return Report(exercise, problem=f"it does not define {' or '.join(missing)}")
            try:
                results.append(_run(function, Learner(guest, language)))
            except GuestError as error:
                if error.is_stub:
                    return Report(exercise, problem=_cut(f"not written yet: {error.message}"), is_stub=True)
                results.append(_failed(function, str(error), error.call or None))
            except GuestStopped as stopped:
                results.append(_failed(function, stopped.told))
                guest.close()
                guest = None
                num_stopped += 1
        output = guest.output() if guest is not None else ""
    except GuestError as error:  # the cell does not load
        if error.is_stub:
            return Report(exercise, problem=_cut(f"not written yet: {error.message}"), is_stub=True)
        return Report(exercise, problem=_cut(str(error)))
    except GuestStopped as stopped:
        return Report(exercise, problem=stopped.told)
    except NotCompiled as error:
        return Report(exercise, problem=_cut(str(error)), is_stub=error.is_stub)
    finally:
        if guest is not None:
            guest.close()
    return Report(exercise, results, output=output[:2_000])


def _check_repair(hunt: BugHunt, source: str, only: str | None) -> Report:
    """Run the checks of a program of quizzes/autopsies on its repair."""
    from quizzes.autopsies import programs

    folder = hunt.folder.name
    wanted = programs.calls(hunt.read("solution"))
    try:
        with programs.guest_for(folder, source, LIMITS) as guest:
            guest.load()
            output = guest.output()
            missing = [call for name, call in wanted.items() if not guest.has(name)]
    except GuestError as error:
        return Report(hunt.number, problem=_cut(str(error)))
    except GuestStopped as stopped:
        return Report(hunt.number, problem=stopped.told)
    not_mended = programs.not_mended(folder, source)
    if missing and not not_mended:
        problem = f"it does not define {' or '.join(missing)}; the text at its top says what to write"
        return Report(hunt.number, problem=problem)
    found = programs.run_checks(folder, source, names=() if only is None else (only,))
    results = [CheckResult(each.name, each.says, each.ok, each.why) for each in found]
    if not_mended and not any(each.ok for each in found):
        problem = f"not mended yet: {not_mended}; {_MEND_IT}"
        return Report(hunt.number, [replace(each, why="") for each in results], problem, is_stub=True)
    return Report(hunt.number, results, output=output[:2_000])


def _guest(lesson: Lesson | Lab, facts: Exercise, source: str, patience: float) -> Guest:
    """Start a process with the learner's code. Raises GuestError, GuestStopped, NotCompiled."""
    language = lesson.language if isinstance(lesson, Lab) else "python"
    call, load = [SLOW_CALLS.get(language, usual) for usual in (LIMITS.call_seconds, LIMITS.load_seconds)]
    limits = Limits(
        seconds=patience * facts.seconds,
        call_seconds=patience * call,
        load_seconds=patience * load,
        megabytes=MEGABYTES,
    )
    if isinstance(lesson, Lab) and language != "python":
        return compiled_guest(lesson, source, limits)
    return Guest({"learner.py": source}, limits=limits, imports=tuple(facts.imports))


def _run(function: CheckFunction, learner: Learner) -> CheckResult:
    try:
        function(learner)
    except GuestError:
        raise  # it is also an instance of the error that the learner's code raised
    except Failed as failed:
        return _failed(function, failed.why, failed.example, failed.traces)
    except AssertionError as error:
        return _failed(function, str(error) or "the result is wrong")
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        # The learner's value has another shape than the check expects.
        return _failed(function, f"the result cannot be compared ({type(error).__name__}: {error})")
    return CheckResult(function.__name__, requirement(function), True)


def _failed(
    function: CheckFunction, why: str, example: object = None, traces: tuple[Path, Path, int] | None = None
) -> CheckResult:
    shown = "" if example is None else example if isinstance(example, str) else repr(example)
    mine, right, step = traces or ("", "", 0)
    return CheckResult(
        function.__name__, requirement(function), False, _cut(why), shown[:500], str(mine), str(right), step
    )


def _cut(why: str) -> str:
    """Return a message of bounded length: it may quote a value of any size."""
    return why if len(why) <= LONGEST_WHY else why[:LONGEST_WHY] + " ..."


def requirement(function: CheckFunction) -> str:
    return (inspect.getdoc(function) or function.__name__).splitlines()[0]
