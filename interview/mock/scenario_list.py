"""The scenarios: an index, each parsed when needed.

scenarios = load_scenarios()
scenarios.entries["inference.stalled_streams"].level
scenarios.scenario("inference.stalled_streams")
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quizzes import yaml_files
from quizzes.yaml_files import Index

INSTEAD = "PREP_SCENARIOS"
"""Environment variable: a folder of scenarios to use instead of the shipped ones."""
FOLDER = Path(__file__).parent / "scenarios"
_QUIZZES = Path(yaml_files.__file__).parent
_SCHEMA_FILES = [Path(__file__).parent / "scenario.py", _QUIZZES / "question.py", _QUIZZES / "topics.py"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Index entry of a scenario."""

    id: str
    title: str
    role: str
    level: str
    kind: str
    topics: tuple[str, ...]


class Scenarios(Index[Entry]):
    """Scenarios by id."""

    def scenario(self, scenario_id: str) -> Any:
        """Return the whole scenario (`scenario.Scenario`). Raises UnknownId."""
        from interview.mock.scenario import Scenario

        problem = "no scenario is called"
        return Scenario.model_validate(self.data(scenario_id, problem, "prep mock scenarios"))


def load_scenarios(folder: Path | None = None) -> Scenarios:
    """Load all scenarios of a folder; of $PREP_SCENARIOS, or the shipped ones, by default.

    Broken files are left out and listed in `problems`.
    """
    folder = folder or Path(os.environ.get(INSTEAD) or FOLDER)
    documents, problems = yaml_files.load(folder, _check, _SCHEMA_FILES)
    kept = {document.data["id"]: document for document in documents}
    return Scenarios({name: _entry(document.data) for name, document in kept.items()}, problems, kept)


def _check(data: dict[str, Any]) -> None:
    from interview.mock.scenario import Scenario

    Scenario.model_validate(data)


def _entry(data: dict[str, Any]) -> Entry:
    names = ("id", "title", "role", "level", "kind")
    return Entry(**{name: data[name] for name in names}, topics=tuple(data["topics"]))
