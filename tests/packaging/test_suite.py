"""Hold for the tests themselves: they wait in one way, assert no time, and start with signals that are not ignored."""

from __future__ import annotations

import ast
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.packaging.test_shape import ROOT, python_files

HELPER = "tests/waiting.py"
CLOCKS = {
    f"{name}{unit}"
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
    for unit in ("", "_ns")
}
SUSPICIOUS = re.compile(r"sleep|wait_for_timeout|Event\(\)\.wait|import time\b|from time\b")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_program(tree: ast.Module) -> bool:
    """Tell whether tests start this file as a program, which may sleep."""
    return any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body)


def imported(tree: ast.Module, module: str) -> dict[str, str]:
    """Return the names that a file imports from a module: name there -> name in the module."""
    return {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }


def sleeps(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that wait for a time, not for a condition."""
    names = imported(tree, "time") | imported(tree, "asyncio")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            is_sleep = called in ("time.sleep", "asyncio.sleep") or names.get(called) == "sleep"
            is_disguised = called.endswith("Event().wait") and bool(node.args or node.keywords)
            if is_sleep or is_disguised or called.endswith(".wait_for_timeout"):
                yield node.lineno


def time_asserts(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that compare a time read from a clock, also through names and functions of the file."""
    clocks = {f"time.{clock}" for clock in CLOCKS}
    clocks |= {name for name, clock in imported(tree, "time").items() if clock in CLOCKS}
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    while clocks & set(calls):
        depends = [(each, timed(each, clocks)) for each in functions]
        more = {each.name for each, is_timed in depends if any(map(is_timed, found(each, ast.Return)))}
        if more <= clocks:
            for each, is_timed in depends:
                yield from (node.lineno for node in found(each, ast.Compare) if is_timed(node))
            return
        clocks |= more


def found(function: ast.AST, kind: Any) -> list[Any]:
    return [node for node in ast.walk(function) if isinstance(node, kind)]


def timed(function: ast.AST, clocks: set[str]) -> Callable[[ast.AST], bool]:
    """Return a test of a part of a function: does it depend on a clock?"""
    names: set[str] = set()

    def depends(node: ast.AST) -> bool:
        return any(ast.unparse(each.func) in clocks for each in found(node, ast.Call)) or any(
            each.id in names for each in found(node, ast.Name)
        )

    stores = [
        (node.value, [each.id for target in targets for each in found(target, ast.Name) if is_stored(each)])
        for node in found(function, ast.Assign | ast.AnnAssign | ast.AugAssign)
        if node.value is not None
        and (targets := node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    stores += [
        (node, [node.func.value.id])
        for node in found(function, ast.Call)
        if ast.unparse(node.func).endswith(".append") and isinstance(node.func.value, ast.Name)
    ]
    while more := {name for value, into in stores if depends(value) for name in into} - names:
        names |= more
    return depends


def is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def faults(text: str) -> list[str]:
    if not SUSPICIOUS.search(text):  # parsing all files takes seconds
        return []
    tree = ast.parse(text)
    if is_program(tree):
        return []
    listed = [(line, "sleeps") for line in sleeps(tree)]
    listed += [(line, "compares a time of the clock") for line in time_asserts(tree)]
    return [f"{line}: {what}" for line, what in sorted(set(listed))]


def test_only_the_helper_sleeps_and_no_test_asserts_a_time() -> None:
    listed = [
        f"{name}:{fault}"
        for path in python_files("tests")
        if (name := str(path.relative_to(ROOT))) != HELPER
        for fault in faults(path.read_text())
    ]
    how = "wait for a condition with tests/waiting.py, count with tests/counting.py:"
    assert not listed, "\n".join([how, *listed])


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import time\ndef test():\n    time.sleep(1)", [3]),
        ("from time import sleep as nap\ndef test():\n    nap(1)", [3]),
        ("import asyncio\nasync def test():\n    await asyncio.sleep(0)", [3]),
        ("def test(tab):\n    tab.wait_for_timeout(9)", [2]),
        ("import threading\ndef test():\n    threading.Event().wait(1)", [3]),
        (
            "import time\ndef test():\n    a = time.monotonic()\n    b = time.monotonic() - a\n    assert b < 1",
            [5],
        ),
        (
            "import time\ndef test():\n    end = time.time() + 1\n    while end > time.time():\n        pass",
            [4],
        ),
        (
            "from time import perf_counter as now\ndef test():\n    t = []\n    t.append(now())\n    assert t[0] < 1",
            [5],
        ),
        (
            "import time\ndef f():\n    return time.time()\ndef g():\n    return f()\ndef test():\n    assert g() < 1",
            [7],
        ),
        ("import time\ndef test(job):\n    job.begin(now=time.monotonic())\n    assert job.seconds < 5", []),
        ("import time\nif __name__ == '__main__':\n    time.sleep(1)", []),
    ],
)
def test_the_lint_finds_every_form_of_them(text: str, lines: list[int]) -> None:
    assert [int(fault.split(":")[0]) for fault in faults(text)] == lines


PROBE = """
import json, signal, subprocess, sys
import tests.conftest
names = ["SIGINT", "SIGTERM", "SIGHUP"]
code = f"import signal; print([signal.getsignal(getattr(signal, n)) == signal.SIG_IGN for n in {names}])"
child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
is_python = signal.getsignal(signal.SIGINT) is signal.default_int_handler
print(json.dumps([child, is_python, [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())]]))
signal.raise_signal(signal.SIGHUP)
print("goes on")
"""


def test_programs_get_ctrl_c_though_the_suite_was_started_in_the_background() -> None:
    def ignore() -> None:
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    done = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=ROOT, preexec_fn=ignore, capture_output=True, text=True, check=True
    )
    found, rest = done.stdout.splitlines()
    assert json.loads(found) == ["[False, False, False]", True, []]
    assert rest == "goes on", "a hangup does not end a suite that nohup started"
