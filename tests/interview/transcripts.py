"""Labelled transcripts: what candidates said in whole sessions, and the marks that a reader of the rubric gave them.

A file of `transcripts/` holds a scenario, a seed, replies by turn, and labels by axis (null: not to be seen here). The
person who labels reads only the transcript and `rubric.yaml`, not what the machine says.

    python -m tests.interview.transcripts FILE       shows the turns, up to the first without a reply
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from interview.mock.coding import check, solution, start
from interview.mock.scenario_list import Scenarios, load_scenarios
from interview.mock.session import Session
from interview.mock.talk import Spec
from interview.mock.turns import Ask, Continue, Form, Mark, Menu, Program, Rate, RunExperiment, Turn
from quizzes.experiments.registry import Inconclusive, NeedsHardware
from quizzes.experiments.runner import RunFailed, Runner

FOLDER = Path(__file__).parent / "transcripts"


class Unanswered(Exception):
    """The transcript has no reply for this turn."""


def name_of(turn: Turn) -> str:
    """Return a turn's key in a transcript: "why_freeze#answer"."""
    return turn.id.rpartition("/")[2]


def reply_to(turn: Turn, replies: dict[str, Any], runner: Runner) -> tuple[dict[str, Any], float]:
    """Return the reply of a transcript to a turn, and its seconds. Raises Unanswered."""
    want = turn.want
    if isinstance(want, RunExperiment):
        try:
            return {"result": runner.run(want.name, want.args).result}, 0.0
        except (Inconclusive, NeedsHardware, RunFailed) as error:
            return {"failed": str(error)}, 0.0
    if isinstance(want, Continue):
        return {}, 5.0
    if isinstance(want, Rate):
        return {"ratings": {}}, 10.0
    if name_of(turn) not in replies:
        raise Unanswered(name_of(turn))
    said = replies[name_of(turn)]
    if isinstance(said, str):
        said = {"mark" if isinstance(want, Mark) else "pick" if isinstance(want, Menu) else "text": said}
    said = dict(said)
    seconds = float(said.pop("seconds", 30.0))
    if isinstance(want, Program):
        source = {"solution": solution, "start": start}.get(said["source"], lambda code: said["source"])(
            want.code
        )
        done = check(want.code, source)
        said = {"source": source, "passed": done.passed, "failed": done.failed, "tries": said.get("tries", 1)}
    return said, seconds


def play(
    transcript: dict[str, Any],
    scenarios: Scenarios,
    runner: Runner,
    *,
    results: Path | None = None,
    show: bool = False,
) -> Session:
    """Walk the session of a transcript; `results` keeps those of runs. Raises Unanswered, ParseError."""
    name = transcript["scenario"]
    entry = scenarios.entries[name]
    minutes, seed = transcript.get("minutes", 45), transcript["seed"]
    # The labelled sessions end without a return to follow-ups: there are no replies for that.
    spec = Spec(f"t{seed}", entry.role, entry.level, minutes, seed, (name,), "", skips_said=True)
    with tempfile.TemporaryDirectory() as home, patch.dict(os.environ, {"PREP_HOME": home}):
        if results is not None:
            (Path(home) / "cache").symlink_to(results)
        with Session.start(spec, scenarios) as session:
            while session.turn is not None:
                if show:
                    _show(session.turn)
                reply, seconds = reply_to(session.turn, transcript["replies"], runner)
                if show and not isinstance(session.turn.want, RunExperiment):
                    print(f"    => {reply}\n")
                session.reply(reply, seconds)
    return session


def _show(turn: Turn) -> None:
    want = turn.want
    print(f"[{name_of(turn)}] ({turn.stage}, {turn.minutes} min)\n{turn.say}")
    for row in (turn.chart or {}).get("rows", []):
        print("    ", *row, sep=" | ")
    if isinstance(want, Ask):
        for number, choice in enumerate(want.instance.choices(), 1):
            print(f"    {number} {want.instance.render(choice.text)}")
        units = [f"{a.id} [{a.unit or a.type}]" for a in want.instance.question.answers]
        print(f"    keys: {want.keys} {units}")
    elif isinstance(want, Menu):
        for name, text in want.options:
            print(f"    {name}: {text}")
    elif isinstance(want, Form):
        print(
            f"    {want.values}",
            *(f"{p.id}: {p.ask} {p.options or (p.lo, p.hi)}" for p in want.fields),
            sep="\n    ",
        )
    elif isinstance(want, Mark):
        print(f"    point: {want.point.say}\n    closest: {want.closest}")


def main() -> None:
    with Runner() as runner:
        for path in sys.argv[1:]:
            try:
                play(
                    yaml.safe_load(Path(path).read_text(encoding="utf-8")),
                    load_scenarios(),
                    runner,
                    show=True,
                )
                print("complete")
            except Unanswered as missing:
                print(f"    no reply for {missing} yet")


if __name__ == "__main__":
    main()
