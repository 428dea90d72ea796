"""Messages of `prep fleet up` during a start: progress, expected time, next command."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.cli.fleet import Teller
from engine.fleet.config import FleetSettings
from engine.fleet.events import EventLog

URL = "http://127.0.0.1:1"


def told(settings: FleetSettings, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what is told in a start of all replicas, in the middle of which one dies."""
    teller = Teller(settings)
    teller.listens(URL)
    events = EventLog(None, teller.tell)
    for number in range(settings.replicas):
        events.add("start", f"r{number}", settings.replicas)
    events.add("died", "r0", settings.replicas, why="exit code 1: no memory")
    for number in range(settings.replicas):
        events.add("warm", f"r{number}", settings.replicas, why="started in 4.20 s", start_s=4.2)
        events.add("ready", f"r{number}", settings.replicas)
    return capsys.readouterr().err.splitlines()


def test_a_start_tells_its_progress_the_expected_time_and_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    settings = FleetSettings(name="shop", replicas=2, start_timeout_s=90)
    first = told(settings, capsys)
    assert first[1] == "2 replicas of shop start: at most 90 s each"
    assert any("died" in line and "no memory" in line for line in first)
    ready = [number for number, line in enumerate(first) if " ready    r" in line]
    last = next(number for number, line in enumerate(first) if line.startswith(f"shop is ready: {URL}/v1"))
    assert len(ready) == 2 and last == ready[-1] + 1 and f"prep load {URL}" in first[-1]
    assert told(settings, capsys)[1] == "2 replicas of shop start: about 4 s, as the last time"


def test_a_fleet_scaled_to_zero_says_that_the_first_request_starts_a_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    scale = {"signal": "load", "out_above": 2, "in_below": 1, "min_replicas": 0}
    Teller(FleetSettings.model_validate({"replicas": 0, "autoscale": scale})).listens(URL)
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "no replica starts before the first request" and f"prep load {URL}" in lines[-1]
