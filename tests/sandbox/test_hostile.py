"""Hostile learner code never gets a right answer, never outlives its limit, and leaves nothing behind."""

from __future__ import annotations

import os
import select
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from prep_common.child_process import ROOT
from prep_common.sandbox import Guest, GuestError, GuestStopped, Handle, Limits
from prep_common.sandbox.process import MOST_CREDIT, GuestProcess, _megabytes_of
from tests.sandbox.hostile import IS_STOPPED, PRELUDE, RETURNS_SOMETHING_ELSE
from tests.waiting import ends_within

LIMITS = Limits(seconds=1.0, megabytes=300, disk_megabytes=32)
AMPLE = replace(LIMITS, seconds=20.0)
"""For code that another limit stops, however slow the machine."""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.write_text("answers")
    return path


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: Path) -> Iterator[None]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield
    assert list(scratch.iterdir()) == []
    assert secret.read_text() == "answers"
    assert not (ROOT / "hostile").exists()
    assert _left(str(scratch)) == []


def _left(scratch: str) -> list[psutil.Process]:
    """Running processes of guests, and what these started: their home is a folder in `scratch`."""
    found = []
    for process in psutil.process_iter():
        try:
            home = process.environ().get("HOME", "")
            if process.status() != psutil.STATUS_ZOMBIE and home.startswith(scratch):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each wait for a guest in which nothing came, since its clock was started.

    The guest was idle or busy at least for their sum, on a slow machine as on a fast one.
    """
    seconds: list[float] = []
    start_clock = GuestProcess.start_clock

    def start(self: GuestProcess) -> None:
        seconds.clear()
        start_clock(self)

    def wait(reads: list[int], writes: list[int], errors: list[int], timeout: float) -> tuple[list[int], ...]:
        ready = select.select(reads, writes, errors, timeout)
        if not any(ready):
            seconds.append(timeout)
        return ready

    monkeypatch.setattr(GuestProcess, "start_clock", start)
    monkeypatch.setattr("prep_common.sandbox.process.select", SimpleNamespace(select=wait))
    return seconds


def _total(source: str, secret: Path, limits: Limits = LIMITS) -> Any:
    prelude = PRELUDE.format(root=str(ROOT), host=os.getpid(), secret=str(secret))
    files = {"learner.py": prelude + source}
    with ends_within(60), Guest(files, limits=limits) as guest:  # what sleeps there does it for 100 s
        answer = guest.call("total", [3, 4, 5])
        return list(answer) if isinstance(answer, Handle) and answer.has("__iter__") else answer


@pytest.mark.parametrize("name", RETURNS_SOMETHING_ELSE)
def test_an_attack_does_not_pass(name: str, secret: Path) -> None:
    try:
        answer = _total(RETURNS_SOMETHING_ELSE[name], secret)
    except (GuestError, GuestStopped, TypeError, ValueError):
        return
    assert answer != 12 and answer != "escaped"


@pytest.mark.slow
@pytest.mark.parametrize("name", IS_STOPPED)
def test_a_guest_is_stopped(name: str, secret: Path, waits: list[float]) -> None:
    source, why = IS_STOPPED[name]
    limits = LIMITS if why == "stopped after" else AMPLE
    with pytest.raises(GuestStopped) as stopped:
        _total(source, secret, limits)
    assert why in str(stopped.value)
    assert sum(waits) <= (1 + MOST_CREDIT) * limits.seconds


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which deleted files a process has open")
def test_a_deleted_file_counts_as_disk_space_while_it_is_open_and_a_file_elsewhere_never(
    tmp_path: Path,
) -> None:
    folder, us = tmp_path / "scratch", [psutil.Process()]
    before = _megabytes_of(folder, us)
    with (tmp_path / "elsewhere").open("wb", buffering=0) as elsewhere, (folder / "f").open("wb") as file:
        for each in (elsewhere, file):
            each.write(bytes(8 << 20))
        file.flush()
        assert _megabytes_of(folder, us) == before + 8, "a file of the folder that is open counts once"
        (folder / "f").unlink()
        assert _megabytes_of(folder, us) == before + 8
    assert _megabytes_of(folder, us) == before
