"""The timeline of an incident in an interview: events as those of a drill's session, for its post-mortem."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from typing import Any

from interview.drills.figures import LOOKS
from interview.drills.score import Score
from interview.mock.case import Case
from interview.mock.talk import Talk

UNDATED = "2000-01-01T00:00:00"


class Timeline:
    """Events with the time of the interview's clock."""

    def __init__(self, talk: Talk, case: Case) -> None:
        self._talk, self._case = talk, case
        self.events: list[dict[str, Any]] = []
        self._add("start", drill=case.drill.id)
        self.runs()

    def _add(self, event: str, **fields: Any) -> None:
        began = dt.datetime.fromisoformat(self._talk.spec.started or UNDATED).replace(tzinfo=None)
        now = began + dt.timedelta(seconds=self._talk.elapsed)
        self.events.append({"at": now.isoformat(timespec="seconds"), "event": event, **fields})

    def runs(self) -> None:
        """Add both runs, recorded or live."""
        for name, figures in (("healthy", self._case.healthy), ("faulty", self._case.faulty)):
            self._add(name, figures=figures, **self._good(name))

    def look(self, name: str) -> None:
        self._add("look", name=name, cost=LOOKS[name].cost)

    def hypothesis(self, said: dict[str, Any]) -> None:
        self._add("hypothesis", **{name: said[name] for name in ("cause", "confidence", "evidence")})

    def fix(self, number: str) -> None:
        self._add("fix", fix=dict(self._case.fixes)[number], **self._good(number))

    def end(self, score: Score) -> None:
        self._add("end", **asdict(score))

    def _good(self, name: str) -> dict[str, Any]:
        good = self._case.good[name]
        return {"good": good, "is_met": self._case.drill.is_met(good)}
