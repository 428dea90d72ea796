"""Scripted candidates, who walk whole sessions: the lint plays one, tests compare five.

excellent   right, with intervals and sentences, asks first          slow     the same in almost twice the time
silent      right numbers, no explanation                            vague    no numbers, wide intervals, half right
wrong       confident and wrong
"""

from __future__ import annotations

from random import Random
from typing import Any

from interview.drills.figures import FIGURES
from interview.mock.case import Case, cheapest_evidence
from interview.mock.drawn import Drawn
from interview.mock.incident import KNOWN
from interview.mock.scenario import Pick, Reverse, Step
from interview.mock.session import Session
from interview.mock.turns import (
    Ask,
    Continue,
    Form,
    Hypothesis,
    Mark,
    Menu,
    Program,
    Prose,
    Rate,
    RunDrill,
    RunExperiment,
    Turn,
)
from quizzes.experiments.registry import Inconclusive, NeedsHardware
from quizzes.experiments.runner import RunFailed, Runner
from quizzes.grading.grade import typed, typed_replies
from quizzes.instance import Instance

PERSONAS = ("excellent", "slow", "silent", "vague", "wrong")
VAGUE = (
    "It depends on the workload, of course. In general the scheduler has to balance several things, and there are "
    "different ways to do that. Usually one tunes the settings until it looks fine. I would look at the dashboards "
    "and then try the options that others use. Larger batches are often better, but not always, so one has to see."
)


class Candidate:
    """Replies to every turn in the manner of a persona. Experiments run for real."""

    def __init__(self, persona: str, session: Session, runner: Runner) -> None:
        self.persona = persona
        self.session = session
        self.runner = runner
        self.rng = Random(f"{persona}:{session.spec.id}")
        self._clarified: set[str] = set()

    def hold(self) -> None:
        """Walk the session to its end."""
        while self.session.turn is not None:
            self.session.reply(*self.reply(self.session.turn))

    def reply(self, turn: Turn) -> tuple[dict[str, Any], float]:
        """Return a reply and the seconds it took."""
        want = turn.want
        pace = {"slow": 1.7, "silent": 0.2}.get(self.persona, 0.6)
        seconds = 60 * pace * (turn.minutes or 1)
        if isinstance(want, RunDrill):
            return {"failed": "a script runs no servers"}, 0.0
        if isinstance(want, RunExperiment):
            return self._run(want.name, want.args), 0.0
        if isinstance(want, Continue):
            return {}, 5.0
        if isinstance(want, Rate):
            return {"ratings": dict.fromkeys(want.axes, 4 if self.persona != "silent" else 3)}, 20.0
        if isinstance(want, Mark):
            return {"mark": self._mark()}, 5.0
        if isinstance(want, Prose):
            return self._prose(turn), seconds
        if isinstance(want, Ask):
            return self._ask(want.instance), seconds
        if isinstance(want, Form):
            return self._form(turn, want), seconds / (4 if want.can_try else 2)
        if isinstance(want, Hypothesis):
            return self._hypothesis(turn, want), seconds / 4
        if isinstance(want, Menu):
            return {"pick": self._pick(turn, want)}, seconds / 4
        assert isinstance(want, Program)
        return self._program(want), seconds

    @property
    def _knows(self) -> bool:
        return self.persona in ("excellent", "slow", "silent")

    def _step(self, turn: Turn) -> tuple[Drawn, Step]:
        scenario, _, step = turn.id.partition("#")[0].partition("/")
        drawn = next(entry for entry in self.session.scenarios if entry.scenario.id == scenario)
        return drawn, drawn.scenario.step(step)

    def _run(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"result": self.runner.run(name, args).result}
        except (Inconclusive, NeedsHardware, RunFailed) as error:
            return {"failed": str(error)}

    def _mark(self) -> str:
        return {"silent": "miss", "vague": "partial"}.get(self.persona, "hit")

    def _prose(self, turn: Turn) -> dict[str, Any]:
        if self.persona == "silent":
            return {"text": "Yes, that is the scheduler."}
        if self.persona == "vague":
            return {"text": VAGUE}
        drawn, step = self._step(turn)
        if self.persona == "excellent" and step.id not in self._clarified and step.stage == "core":
            self._clarified.add(step.id)
            return {"clarify": f"What about the {drawn.scenario.clarifications[0].words[0]}?"}
        points = drawn.key_points(step)
        if self.persona == "wrong":
            return {"text": " ".join(f"{point.bad[0].rstrip('.')}." for point in points) + " " + VAGUE[:200]}
        said = " ".join(f"{point.say.rstrip('.')}." for point in points)
        more = "That is why I would check it with 2 runs before I change anything. The counters will tell. "
        return {"text": said + " " + more * max(0, (60 - len(said.split())) // len(more.split()) + 1)}

    def _ask(self, instance: Instance) -> dict[str, Any]:
        run, result = instance.question.experiment, None
        if run is not None:
            result = self._run(run.run, instance.run_args()).get("result", {})
            if not result:
                return {"pass": True}
        expected = instance.expected(result)
        replies = typed_replies(instance, expected)
        is_right = self._knows or self.persona == "vague" and self.rng.random() < 0.5
        if not is_right:
            replies = {key: self._wrong(instance, key, expected[key]) for key in replies}
        for answer in instance.question.answers:
            if answer.interval is not None:
                truth = float(expected[answer.id])
                middle = truth if is_right else truth * (7 if self.persona == "wrong" else 2.5) + 3
                low, high = (0.85, 1.15) if self.persona != "vague" else (0.05, 8.0)
                ends = sorted((middle * low, middle * high))
                unit = answer.unit or ""
                replies[f"{answer.id}.interval"] = f"{typed(ends[0], unit)} .. {typed(ends[1], unit)}"
        return {"replies": replies, "confidence": self._confidence}

    @property
    def _confidence(self) -> int:
        return {"wrong": 95, "vague": 50, "silent": 75}.get(self.persona, 85)

    def _wrong(self, instance: Instance, key: str, right: Any) -> str:
        if key == "choice":
            ids = [choice.id for choice in instance.choices()]
            return str(next((n for n, option in enumerate(ids, 1) if option not in right), 1))
        if isinstance(right, bool):
            return "no" if right else "yes"
        if isinstance(right, int | float):
            off = right * (7 if self.persona == "wrong" else 2.5) + 3
            answer = next(part for part in instance.question.answers if part.id == key)
            return typed(round(off) if answer.type == "int" else float(off), answer.unit or "")
        if isinstance(right, list):
            return ", ".join(map(str, [*right[1:], 7]))
        return "nothing"

    def _form(self, turn: Turn, want: Form) -> dict[str, Any]:
        drawn, step = self._step(turn)
        if step.canvas is None or not want.can_try:
            return {"values": {pick.id: _middle(pick, want.values.get(pick.id)) for pick in want.fields}}
        if not self._knows:  # the design as it stands, or something cheap and small
            return {"values": dict(want.values), "commit": True}
        number = int(turn.id.rpartition("design")[2].partition(".")[0])
        solutions = [step.canvas.solution, *(change.solution for change in step.canvas.changes)]
        return {"values": {**want.values, **drawn.value(solutions[number])}, "commit": True}

    def _pick(self, turn: Turn, want: Menu) -> str:
        drawn, step = self._step(turn)
        options = [name for name, _ in want.options]
        name = turn.id.rpartition("#")[2]
        right = options[0]
        if step.incident is not None:
            right = self._in_incident(step, name, options)
        elif step.reverse is not None:
            right = self._in_reverse(drawn, step.reverse, name, options)
        if self._knows or name.startswith("look") or self.persona == "vague" and self.rng.random() < 0.5:
            return right
        return next(option for option in reversed(options) if option != right)

    def _in_incident(self, step: Step, name: str, options: list[str]) -> str:
        drill = Case.of(step).drill
        if name.startswith("look"):
            look = FIGURES[cheapest_evidence(drill)].look
            return look if name == "look0" else KNOWN
        return str(drill.right_fixes[0])

    def _hypothesis(self, turn: Turn, want: Hypothesis) -> dict[str, Any]:
        drill = Case.of(self._step(turn)[1]).drill
        is_right = self._knows or self.persona == "vague" and self.rng.random() < 0.5
        wrong = next(name for name, _ in reversed(want.causes) if name != drill.cause)
        decides = [name for name in want.figures if name in drill.evidence]
        others = [name for name in want.figures if name not in drill.evidence]
        return {
            "cause": drill.cause if is_right else wrong,
            "confidence": self._confidence,
            "evidence": (decides if is_right else others[:1] or decides)[:1],
        }

    def _in_reverse(self, drawn: Drawn, reverse: Reverse, name: str, options: list[str]) -> str:
        if name == "flaw":
            return _right_option(drawn, reverse.flaw, None)
        for test in reverse.tests:
            result = self._run(test.run.run, drawn.value(test.run.args)).get("result")
            if result is not None and test.id in options and drawn.holds(test.refutes, result=result):
                return test.id
        return options[0]

    def _program(self, want: Program) -> dict[str, Any]:
        from interview.mock.coding import check, solution, start

        source = solution(want.code) if self._knows else start(want.code)
        done = check(want.code, source)
        return {"source": source, "passed": done.passed, "failed": done.failed, "tries": 1}


def _middle(pick: Pick, start: Any) -> Any:
    if start is not None:
        return start
    if pick.options:
        return pick.options[0]
    assert pick.lo is not None and pick.hi is not None
    middle = (pick.lo + pick.hi) / 2
    return round(middle) if pick.whole else middle


def _right_option(drawn: Drawn, choices: list[Any], result: dict[str, Any] | None) -> str:
    more = {} if result is None else {"result": result}
    for choice in choices:
        if choice.right is True or isinstance(choice.right, str) and drawn.holds(choice.right, **more):
            return str(choice.id)
    return str(choices[0].id)
