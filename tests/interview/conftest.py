import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quizzes.experiments.runner import Runner


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of experiments, which the tests that hold whole sessions share in all processes of a test run."""
    here = tmp_path_factory.getbasetemp()
    folder = (here.parent if "PYTEST_XDIST_WORKER" in os.environ else here) / "results"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as found:
        yield found
