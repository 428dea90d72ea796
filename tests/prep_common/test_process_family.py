"""The family of a process is what psutil finds by asking every process for its parent."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from prep_common import process_family
from prep_common.process_family import family

SLEEPS = "import time; time.sleep(600)"
PARENT = f"""
import subprocess, sys, threading
def start(code):
    return subprocess.Popen([sys.executable, "-c", code])
own = start({SLEEPS!r})
thread = threading.Thread(target=start, args=('import subprocess, sys; '
    'subprocess.Popen([sys.executable, "-c", "{SLEEPS}"]); print(flush=True); {SLEEPS}',))
thread.start()
{SLEEPS}
"""
"""Starts one child itself, and from a thread another that starts a third and then prints a line."""


@pytest.mark.parametrize("lists", [True, False])
def test_it_has_children_of_threads_and_children_of_children(
    lists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not lists:
        monkeypatch.setattr(process_family, "_lists_children", lambda: False)
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None and started.stdout.readline()
        parent = psutil.Process(started.pid)
        everyone = {parent, *parent.children(recursive=True)}
        try:
            assert len(everyone) == 4 and set(family(parent)) == everyone
        finally:
            for each in everyone:
                each.kill()


@pytest.mark.parametrize("lists", [True, False])
def test_one_that_has_ended_is_alone(lists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not lists:
        monkeypatch.setattr(process_family, "_lists_children", lambda: False)
    with subprocess.Popen([sys.executable, "-c", SLEEPS]) as started:
        process = psutil.Process(started.pid)
        started.kill()
    assert family(process) == [process]


@pytest.mark.skipif(not process_family._lists_children(), reason="only Linux lists the children of a thread")
def test_one_that_ends_while_it_is_looked_at_has_no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(folder: str) -> list[str]:
        raise ProcessLookupError(folder)

    monkeypatch.setattr(process_family.os, "listdir", ends)
    assert family(psutil.Process()) == [psutil.Process()]
    monkeypatch.setattr(process_family.os, "listdir", lambda folder: ["0"])
    assert family(psutil.Process()) == [psutil.Process()]
