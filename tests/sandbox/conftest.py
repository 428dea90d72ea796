"""Fixtures of tests that move the clock of a guest's limits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from prep_common.sandbox import process


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return the clock of the limits. It moves by `per_answer` seconds with each answer of a guest."""
    made = SimpleNamespace(now=0.0, per_answer=0.0)
    read = process.GuestProcess.read

    def later(self: process.GuestProcess) -> tuple[bytes, bytes]:
        made.now += made.per_answer
        return read(self)

    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(process, "_seconds_queued", lambda _: 0.0)
    monkeypatch.setattr(process.GuestProcess, "read", later)
    return made
