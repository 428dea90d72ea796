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

from tests import seeds
from tests.packaging.test_shape import ROOT, python_files

HELPER = "tests/waiting.py"
LOOPS = {f"asyncio.{name}()" for name in ("get_running_loop", "get_event_loop", "new_event_loop")}
CLOCKS = {
    f"time.{name}{unit}"
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time")
    for unit in ("", "_ns")
}
CLOCKS |= {f"timeit.{name}" for name in ("timeit", "repeat", "default_timer")}
CLOCKS |= {f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")}
CLOCKS |= {f"{loop}.time" for loop in LOOPS}
SLEEPS = {"time.sleep", "asyncio.sleep"}
EVENTS = {f"{module}.Event()" for module in ("threading", "asyncio", "multiprocessing")}
SUSPICIOUS = re.compile(r"sleep|wait_for_timeout|Event\b|import time|from time|timeit|datetime|\.time\(\)")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_program(tree: ast.Module) -> bool:
    """Tell whether tests start this file as a program, which may sleep: it runs as one and holds no test."""
    return any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in tree.body) and (
        not any(function.name.startswith("test_") for function in found(tree, Function))
    )


def aliases(tree: ast.Module) -> dict[str, str]:
    """Return what names of a file stand for: modules and what is in them, and loops, clocks and sleeps kept in one."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {name.asname: name.name for name in node.names if name.asname}
        elif isinstance(node, ast.ImportFrom):
            names |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    kept = LOOPS | CLOCKS | SLEEPS
    return names | {
        into: origin for into, value in assigned(tree) if (origin := resolved(value, names)) in kept
    }


def assigned(tree: ast.AST) -> list[tuple[str, ast.expr]]:
    """Return the names and attributes that are set, each with its value."""
    return [
        (ast.unparse(target), node.value)
        for node in found(tree, ast.Assign | ast.AnnAssign)
        if node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]


def resolved(node: ast.AST, names: dict[str, str]) -> str:
    """Return an expression with its alias replaced: `t.sleep` after `import time as t` is `time.sleep`."""
    text = ast.unparse(node)
    if text in names:
        return names[text]
    if isinstance(node, ast.Attribute):
        return f"{resolved(node.value, names)}.{node.attr}"
    if isinstance(node, ast.Call) and not node.args:
        return resolved(node.func, names) + "()"
    return text


def sleeps(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that wait for a time, not for a condition."""
    names = aliases(tree)
    unset = set(unset_events(tree, names))
    for call in found(tree, ast.Call):
        called = resolved(call.func, names)
        waits = call.func
        if called == "asyncio.wait_for" and call.args and isinstance(call.args[0], ast.Call):
            waits = call.args[0].func
        is_disguised = id(waits) in unset and bool(call.args or call.keywords)
        if called in SLEEPS or is_disguised or called.endswith(".wait_for_timeout"):
            yield call.lineno


def unset_events(tree: ast.Module, names: dict[str, str]) -> Iterator[int]:
    """Yield the `event.wait` whose event is used for nothing else, so that nothing sets it."""
    for attribute in found(tree, ast.Attribute):
        if attribute.attr == "wait" and resolved(attribute.value, names) in EVENTS:
            yield id(attribute)
    for scope in (tree, *found(tree, Function)):
        made = {into for into, value in assigned(scope) if resolved(value, names) in EVENTS}
        for event in made if scope is tree else {into for into in made if "." not in into}:
            waits = [each for each in found(scope, ast.Attribute) if ast.unparse(each) == f"{event}.wait"]
            uses = [
                each
                for each in found(scope, ast.Name | ast.Attribute)
                if isinstance(each.ctx, ast.Load) and ast.unparse(each) == event
            ]
            if len(uses) == len(waits):
                yield from map(id, waits)


def time_asserts(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that compare a time read from a clock, also through names and functions of the file."""
    names, clocks = aliases(tree), set(CLOCKS)
    calls = {resolved(node.func, names) for node in found(tree, ast.Call)}
    functions = found(tree, Function)
    while clocks & calls:
        depends = [(function, timed(function, clocks, names)) for function in functions]
        more = {each.name for each, is_timed in depends if any(map(is_timed, found(each, ast.Return)))}
        if more <= clocks:
            for each, is_timed in depends:
                yield from (node.lineno for node in found(each, ast.Compare) if is_timed(node))
            return
        clocks |= more


def found(function: ast.AST, kind: Any) -> list[Any]:
    return [node for node in ast.walk(function) if isinstance(node, kind)]


def timed(function: ast.AST, clocks: set[str], aliases: dict[str, str]) -> Callable[[ast.AST], bool]:
    """Return a test of a part of a function: does it depend on a clock?"""
    names: set[str] = set()

    def depends(node: ast.AST) -> bool:
        return any(resolved(each.func, aliases) in clocks for each in found(node, ast.Call)) or any(
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
        ("import time\ndef test_x():\n    time.sleep(1)\nif __name__ == '__main__':\n    test_x()", [3]),
        ("import time as t\ndef test():\n    t.sleep(1)", [3]),
        ("import asyncio as a\nasync def test():\n    await a.sleep(1)", [3]),
        ("import time\nnap = time.sleep\ndef test():\n    nap(1)", [4]),
        ("import threading\ndef test():\n    e = threading.Event()\n    e.wait(1)\n    e.wait()", [4]),
        (
            "from threading import Event as E\ndef test(self):\n    self.e = E()\n    self.e.wait(timeout=1)",
            [4],
        ),
        ("import asyncio\nasync def test():\n    await asyncio.wait_for(asyncio.Event().wait(), 1)", [3]),
        ("import threading\ndef test(job):\n    e = threading.Event()\n    job(e.set)\n    e.wait(1)", []),
        (
            "import threading\ndef test(job):\n    job.e = threading.Event()\n    job.e.set()\n    job.e.wait(1)",
            [],
        ),
        (
            "import asyncio\nasync def test():\n    loop = asyncio.get_running_loop()\n    assert loop.time() < 1",
            [4],
        ),
        ("from asyncio import get_running_loop\ndef test():\n    assert get_running_loop().time() < 1", [3]),
        ("from timeit import timeit\ndef test(f):\n    assert timeit(f, number=1) < 1", [3]),
        (
            "import datetime as dt\ndef test():\n    a = dt.datetime.now()\n    assert dt.datetime.now() - a < 1",
            [4],
        ),
    ],
)
def test_the_lint_finds_them_under_any_name_and_leaves_real_waits_alone(text: str, lines: list[int]) -> None:
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


def test_a_run_repeats_its_seeds_and_each_number_has_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "SEED", 0)
    assert [*seeds.seeds(2), *seeds.seeds(2, first=7)] == [0, 1, 7, 8]
    of_a_run = []
    for number in (1, 2):
        monkeypatch.setattr(seeds, "SEED", number)
        of_a_run.append(set(seeds.seeds(10_000)))
        assert of_a_run[-1] == set(seeds.seeds(10_000)), "a number replays its seeds"
    assert not of_a_run[0] & of_a_run[1]
