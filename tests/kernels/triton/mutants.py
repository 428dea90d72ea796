"""Triton kernels with one fault each: would the checks notice?

Triton reads the source of a kernel from its file, so a fault needs files: the package is copied, one line of it
changed, and the copy imported under a name of its own.
"""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernels import triton_ops
from kernels.check.run import check
from kernels.registry import get

PACKAGE = "kernels.triton_ops"


def faulty(op: str, file: str, right: str, wrong: str, folder: Path) -> Callable[..., Any]:
    """The implementation of `op`, with `right` replaced by `wrong` in `file`. The folder's name names the package."""
    package = f"mutant_{folder.name}"
    copy = shutil.copytree(Path(triton_ops.__file__).parent, folder / package)
    for path in copy.glob("*.py"):
        path.write_text(path.read_text().replace(PACKAGE, package))
    text = (copy / file).read_text()
    assert text.count(right) == 1, f"{right!r} is {text.count(right)} times in {file}: the fault does not fit"
    (copy / file).write_text(text.replace(right, wrong))
    sys.path.insert(0, str(folder))
    try:
        module, function = get(op, "triton").entry.replace(PACKAGE, package).split(":")
        return getattr(importlib.import_module(module), function)
    finally:
        sys.path.remove(str(folder))


def assert_noticed(
    op: str, file: str, right: str, wrong: str, folder: Path, only: str | None = None, **settings: Any
) -> None:
    """The checks of `op`, of the cases whose name holds `only`, must fail with the fault."""
    report = check(op, faulty(op, file, right, wrong, folder), only=only and f"*{only}*", **settings)
    assert report.results, f"no case of {op} is called {only!r}"
    assert report.failures, f"{file}: {right!r} -> {wrong!r} goes unnoticed"
