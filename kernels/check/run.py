"""Check an implementation of an operation against the reference in float64, case by case.

    case -> implementation                        -> result \\
         -> reference, all floats widened to 64 bits -> result --> compare: tolerance.py says how near
         -> implementation, one row alone         -> the same bits as in the batch
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib import import_module
from typing import Any

import torch

from kernels.check.case import Case, copy_of, widened
from kernels.check.cases import cases
from kernels.check.compare import Mismatch, compare
from kernels.check.draw import Size
from kernels.check.invariance import Rows, equal_bits
from kernels.operations import OPERATIONS
from kernels.registry import get, unavailable

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case: right, wrong, or not taken by this implementation."""

    name: str
    status: str
    """passed, failed or unsupported"""
    message: str = ""
    """Reason why it failed, or which inputs the implementation takes."""
    share: float = 0.0
    """The largest error as a share of the tolerance."""
    arguments: str = ""
    """Arguments of a failed case, one per line."""


@dataclass(slots=True)
class CheckReport:
    """All cases of one operation for one implementation."""

    op: str
    backend: str
    dtype: str = "float32"
    size: str = "tiny"
    seed: int = 0
    results: list[CaseResult] = field(default_factory=list)

    def count(self, status: str) -> int:
        return sum(result.status == status for result in self.results)

    @property
    def failures(self) -> list[CaseResult]:
        return [result for result in self.results if result.status == "failed"]

    @property
    def ok(self) -> bool:
        """True if no case failed and at least one passed."""
        return not self.failures and self.count("passed") > 0

    @property
    def worst(self) -> float:
        return max((result.share for result in self.results), default=0.0)

    def __str__(self) -> str:
        head = f"{self.op} {self.backend} {self.dtype}: {self.count('passed')} passed"
        told = [
            f"  {failure.name}: {failure.message}\n{_indented(failure.arguments)}"
            for failure in self.failures
        ]
        return "\n".join([f"{head}, {len(self.failures)} failed", *told])


def check(
    op: str, backend: str | Function, *, dtype: torch.dtype = torch.float32, **settings: Any
) -> CheckReport:
    """Run every case and compare: `results` in one piece, with the same settings."""
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", "function")
    told = {key: value for key, value in settings.items() if key in ("size", "seed")}
    checked = list(results(op, backend, dtype=dtype, **settings))
    return CheckReport(op, name, str(dtype).removeprefix("torch."), results=checked, **told)


def results(
    op: str,
    backend: str | Function,
    *,
    seed: int = 0,
    size: Size = "tiny",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    only: str | None = None,
) -> Iterator[CaseResult]:
    """Every case compared with the reference, one after the other; with `only`, a name or a pattern, some of them.

    backend: the name of an implementation, or any function with the operation's signature.
    """
    function, unsupported = _implementation(op, backend)
    matched = False
    names: list[str] = []
    for number, case in enumerate(cases(op, seed=seed, size=size, dtype=dtype, device=device)):
        names.append(case.name)
        if only is None or only == case.name or fnmatch(case.name, only):
            matched = True
            lonely_row = None if backend == "reference" else number
            yield _check_case(case, function, unsupported, lonely_row)
    if not matched:
        raise ValueError(f"{op} has no case {only!r}; the cases are: {', '.join(names)}")


def _implementation(op: str, backend: str | Function) -> tuple[Function, Function]:
    """(the function, its `unsupported` check)"""
    if not isinstance(backend, str):
        return backend, lambda *args, **kwargs: None
    implementation = get(op, backend)
    if reason := unavailable(backend):
        raise RuntimeError(f"{backend} cannot run here: {reason}")
    function, unsupported = implementation.load(), implementation.unsupported
    pack = getattr(import_module(function.__module__), "packed", None)
    if pack is None:
        return function, unsupported
    return (lambda *args, **options: function(*pack(*args), **options)), (
        lambda *args, **options: unsupported(*pack(*args), **options)
    )


def _check_case(case: Case, function: Function, unsupported: Function, lonely_row: int | None) -> CaseResult:
    if reason := unsupported(*case.args, **case.kwargs):
        return CaseResult(case.name, "unsupported", reason)
    try:
        share = _run(case, function)
        if lonely_row is not None:
            _same_alone(case, lonely_row, function)
    except Mismatch as mismatch:
        return CaseResult(case.name, "failed", str(mismatch), arguments=case.describe())
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        return CaseResult(case.name, "failed", message, arguments=case.describe())
    return CaseResult(case.name, "passed", share=share)


def _run(case: Case, function: Function) -> float:
    reference = get(case.op, "reference").load()
    given, native = copy_of(case), copy_of(case)
    exact = OPERATIONS[case.op].exact
    wide = native if exact else widened(case)
    like = reference(*native.args, **native.kwargs)
    want = like if exact else reference(*wide.args, **wide.kwargs)
    with poisoned_memory():
        got = function(*given.args, **given.kwargs)
    return compare(case, given, got, wide, want, like)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill new tensors with NaN or the largest integer: an output that is not written is never right by chance."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _same_alone(case: Case, row: int, function: Function) -> None:
    """Raise Mismatch if a row has other bits than in the batch: `row`, counted round the rows of the case."""
    rows = OPERATIONS[case.op].part("rows")
    if (
        not isinstance(rows, Rows)
        or not (count := rows.count(case))
        or (row := row % count) in case.free_rows
    ):
        return
    batch, single = copy_of(case), copy_of(rows.alone(case, row))
    of_batch, of_single = _result(batch, function), _result(single, function)
    of_single = of_single if isinstance(of_single, tuple) else (of_single,)
    if not equal_bits(rows.of(case, row, of_batch), of_single):
        what = f"row {row} alone differs from row {row} in the batch"
        raise Mismatch(f"{what}: a result may depend on its row only")


def _result(case: Case, function: Function) -> Any:
    """Return the call's result, or the argument it wrote to."""
    result = function(*case.args, **case.kwargs)
    targets = OPERATIONS[case.op].in_place
    return result if not targets else case.arguments()[targets[0]]


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
