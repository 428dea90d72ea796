"""Settings of the lessons' tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test an empty learner's state and workspace."""
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PREP_LESSONS", str(tmp_path / "lessons"))
