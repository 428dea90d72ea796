"""Scripted people who check the marking: a ladder of candidates, people who know nothing, and an honest one.

LADDER      excellent > good > middling > weak; what one of them knows, all better ones know, question by question
ATTACKERS   want a good mark and know nothing
HONEST      says what they do not know, and what they would measure

`violations` holds every scenario of a level with each of them, and compares their reports with what the rubric
implies. Written from `rubric.yaml` alone; marks are read from `prep mock report --json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import yaml

import interview.mock
from interview.drills.figures import FIGURES
from interview.mock.assessment import rubric
from interview.mock.candidates import VAGUE, Candidate
from interview.mock.case import Case, cheapest_evidence
from interview.mock.incident import KNOWN, LIVE
from interview.mock.report import make
from interview.mock.scenario import AXES
from interview.mock.scenario_list import load_scenarios
from interview.mock.session import Session
from interview.mock.talk import Spec, with_rules
from interview.mock.turns import Ask, Form, Hypothesis, Mark, Menu, Program, Rate, Turn
from quizzes.experiments.runner import Runner
from quizzes.grading import ParseError
from quizzes.grading.grade import typed, typed_replies
from quizzes.instance import Instance
from quizzes.question import Answer, KeyPoint
from tests.interview.cheaters import Cheater
from tests.interview.strangers import ATTACKS, MANNERS, beginning

MOCK = Path(interview.mock.__file__).parent
TICKED = (
    "The scheduler admits requests while memory lasts, and a batch grows with load. Latency follows the queue, so "
    "I would watch tokens and blocks, then change one limit."
)
"""28 words that name things and explain none."""
SCENARIOS = load_scenarios()
_RESULTS: dict[str, dict[str, Any]] = {}
"""Results of experiments, which all sessions of a process share."""


@dataclass(frozen=True)
class Persona:
    """One person of the ladder, or the honest one."""

    name: str
    earns: str
    """Behaviour, and the anchors of the rubric that it should earn."""
    knows: float
    """Probability that an option, a probe, a number or a round of a design is right."""
    off: float
    """Factor by which a number that they do not know is too small or too large."""
    width: float
    """Their intervals go from number / width to number * width."""
    says: str
    """all, required, half (beginnings of points, without mechanism), one (and vague) or none of the points."""
    confidence: int
    rating: int
    pace: float
    """Share of the soft limit of a step that they take."""
    asks: bool = False
    """Whether they ask a clarifying question."""
    looks: int = 0
    """Looks at an incident before the one that decides."""
    finds: bool = True
    """Whether they take the look that decides."""
    tries: int = 1
    """Checks of a program until it passes; 0 if it never does."""


EXCELLENT = Persona(
    "excellent",
    "Right throughout with narrow intervals, every point, one question first, the cheapest look: 5 on every axis.",
    knows=1.0, off=1.0, width=1.15, says="all", confidence=88, rating=5, pace=0.6, asks=True,
)  # fmt: skip
GOOD = Persona(
    "good",
    "Mostly right, wider intervals that hold, the required points, one look too many: 4 on every axis.",
    knows=0.85, off=1.3, width=1.4, says="required", confidence=78, rating=4, pace=0.7, asks=True, looks=1, tries=2,
)  # fmt: skip
MIDDLING = Persona(
    "middling",
    "Right on the main path with errors, the order of magnitude, half of the points without mechanism: 3, mechanism 2.",
    knows=0.6, off=2.0, width=1.6, says="half", confidence=62, rating=3, pace=0.9, looks=3, tries=5,
)  # fmt: skip
WEAK = Persona(
    "weak",
    "Mostly wrong, numbers off by 5 in narrow intervals, one vague point, guesses the cause: 1 or 2 on every axis.",
    knows=0.3, off=5.0, width=1.2, says="one", confidence=50, rating=2, pace=1.2, looks=1, finds=False, tries=0,
)  # fmt: skip
HONEST = Persona(
    "honest",
    "Admits ignorance, names a measurement, wide intervals that hold: 1 or 2, communication and quantification 2 or 3.",
    knows=0.3, off=2.0, width=4.0, says="none", confidence=20, rating=2, pace=0.5, asks=True, looks=2, tries=0,
)  # fmt: skip
LADDER = (EXCELLENT, GOOD, MIDDLING, WEAK)
PEOPLE = {
    "terse": (replace(EXCELLENT, name="terse", says="terse", asks=False), MIDDLING),
    "learner": (replace(GOOD, name="learner", says="learner"), MIDDLING),
    "corrector": (replace(GOOD, name="corrector", says="corrector"), MIDDLING),
    "myth-buster": (replace(GOOD, name="myth-buster", says="myth-buster"), MIDDLING),
    "measurer": (
        replace(
            HONEST, name="measurer", says="measurer", knows=0.5, finds=True, confidence=45, looks=1, tries=5
        ),
        WEAK,
    ),
}
"""Honest people who speak in a manner of MANNERS, and the person of the ladder below whom each never is."""

ATTACKERS = {
    "bluffer": "Fluent nonsense with figures, all points ticked, 95 % sure, random options: 1 everywhere.",
    "echo": "Repeats the question's words, all points ticked: 1 everywhere.",
    "stuffer": "Says the terms of the key points and nothing about them, longest options: communication 1, others 1.",
    "framer": "As the stuffer, in sentences of which half of the words are terms: communication 1, others 1.",
    "varier": "As the stuffer, in sentences with different function words: communication 1, others 1.",
    "denier": "Denies every key point and ticks all: mechanism 1, communication 1 or 2, others 1.",
    "wide": "Intervals from 0.01 to 100 times a number of the question: quantification 1, others 1.",
    "ticker": "28 words, ticks every point and passes every probe: mechanism 1, others 1.",
    "outside": "Estimates outside of their own intervals, percentages above 100: quantification 1, others 1.",
    "rusher": "Takes the first option and a number of the question within 2 s: communication 1 or 2, others 1.",
    "yes-sayer": "Agrees with everything, yes and the first option: diagnosis 1, others 1.",
    **{name: what for name, (what, _) in ATTACKS.items()},
}
"""Name -> what they do, and the anchors that it should earn."""
KINDS = {"echo": "echo", "stuffer": "stuffing", "framer": "framing", "varier": "varying", "denier": "denying"}
"""Attackers whose prose is that of a cheater other than nonsense."""
EVERY_NAME = (*(each.name for each in LADDER), HONEST.name, *PEOPLE, *ATTACKERS)


class Person(Candidate):
    """Replies to every turn with a rng of that turn, and corrects what the interviewer refuses."""

    refused: list[str]
    rating: int
    share: float
    """Share of the usual time of a scripted candidate."""

    def hold(self) -> None:
        """Walk the session to its end. `refused` has the turns whose first reply could not be used."""
        self.refused = []
        while (turn := self.session.turn) is not None:
            reply, seconds = self.reply(turn)
            try:
                self.session.reply(reply, seconds)
            except ParseError:
                self.refused.append(turn.id)
                self.session.reply(self.corrected(turn), 2 * seconds)

    def reply(self, turn: Turn) -> tuple[dict[str, Any], float]:
        self.rng = Random(f"{self.session.spec.seed}:{turn.id}")
        reply, seconds = super().reply(turn)
        if isinstance(turn.want, Mark):
            return {"mark": self._own_mark(turn, turn.want)}, seconds
        if isinstance(turn.want, Rate):
            return {"ratings": dict.fromkeys(turn.want.axes, self.rating)}, seconds
        return reply, seconds * self.share

    def corrected(self, turn: Turn) -> dict[str, Any]:
        """Return the reply after a refused one."""
        raise AssertionError(f"the reply to {turn.id} was refused")

    def _own_mark(self, turn: Turn, want: Mark) -> str:
        return "hit"

    def _run(self, name: str, args: dict[str, Any]) -> dict[str, Any]:
        key = json.dumps([name, args], sort_keys=True, default=str)
        if key not in _RESULTS:
            _RESULTS[key] = super()._run(name, args)
        return _RESULTS[key]


class Player(Person):
    """A person of the ladder, or the honest one."""

    def __init__(self, who: Persona, session: Session, runner: Runner) -> None:
        super().__init__("excellent", session, runner)
        self.who, self.rating, self.share = who, who.rating, who.pace / 0.6

    @property
    def _confidence(self) -> int:
        return self.who.confidence

    def _is_right(self, key: str) -> bool:
        """Return whether they know it: a draw by question, so that better ones know all that others know."""
        return Random(f"{self.session.spec.seed}:{key}").random() < self.who.knows

    def _said(self, points: list[KeyPoint]) -> dict[str, str]:
        """Return what they say, by key point."""
        required = [point for point in points if point.must] or points[:1]
        if self.who.says == "all":
            return {point.id: point.say for point in points}
        if self.who.says == "required":
            return {point.id: point.say for point in required}
        if self.who.says == "half":
            return {point.id: beginning(point.say) for point in points[: (len(points) + 1) // 2]}
        if self.who.says in MANNERS:
            return {each.id: each.say for each in (required[:1] if self.who.says == "measurer" else required)}
        return {required[0].id: beginning(required[0].say)} if self.who.says == "one" else {}

    def _own_mark(self, turn: Turn, want: Mark) -> str:
        drawn, step = self._step(turn)
        told = self._said(drawn.key_points(step)).get(want.point.id)
        return "miss" if told is None else "hit" if told == want.point.say else "partial"

    def _prose(self, turn: Turn) -> dict[str, Any]:
        drawn, step = self._step(turn)
        if self.who.asks and step.id not in self._clarified and step.stage == "core":
            self._clarified.add(step.id)
            return {"clarify": f"What about the {drawn.scenario.clarifications[0].words[0]}?"}
        if self.who.says in MANNERS:
            return {"text": MANNERS[self.who.says][1](drawn, step, self.rng)}
        told = " ".join(f"{each.rstrip('.')}." for each in self._said(drawn.key_points(step)).values())
        if self.who.says == "one":
            told += f" {VAGUE}"
        if self.who.says == "none":
            figure = drawn.scenario.clarifications[0].words[0]
            told = (
                f"I don't know how this works inside. I would measure the {figure} first, because without it I could "
                "only guess, and then compare 2 runs that differ in 1 setting. Until then I would change nothing."
            )
        return {"text": told}

    def _ask(self, instance: Instance) -> dict[str, Any]:
        run, result = instance.question.experiment, None
        if run is not None:
            result = self._run(run.run, instance.run_args()).get("result")
            if result is None:
                return {"pass": True}
        expected = instance.expected(result)
        replies = typed_replies(instance, expected)
        answers = {answer.id: answer for answer in instance.question.answers}
        for key in tuple(replies):
            known = self._is_right(f"{instance.question.id}:{key}")
            if key in answers and answers[key].type in ("int", "float"):
                replies |= self._estimate(answers[key], float(expected[key]), known)
            elif not known:
                replies[key] = self._wrong(instance, key, expected[key])
        return {"replies": replies, "confidence": self._confidence}

    def _estimate(self, answer: Answer, truth: float, known: bool) -> dict[str, str]:
        """Return a number and its interval. A share of up to 100 % stays one."""
        value = truth if known else truth * self.who.off ** self.rng.choice((-1, 1)) + (truth == 0)
        most = 100.0 if answer.unit == "%" and truth <= 100 else float("inf")
        value, unit = min(value, most), answer.unit or ""
        number: int | float = round(value) if answer.type == "int" else value
        ends = sorted((number / self.who.width, min(number * self.who.width, most)))
        interval = f"{typed(float(ends[0]), unit)} .. {typed(float(ends[1]), unit)}"
        return {answer.id: typed(number, unit)} | (
            {} if answer.interval is None else {f"{answer.id}.interval": interval}
        )

    def _form(self, turn: Turn, want: Form) -> dict[str, Any]:
        if want.can_try and not self._is_right(turn.id):
            return {"values": dict(want.values), "commit": True}  # the design as it stands
        return super()._form(turn, want)

    def _pick(self, turn: Turn, want: Menu) -> str:
        name, options = turn.id.rpartition("#")[2], [option for option, _ in want.options]
        if name.startswith("look"):
            decides = FIGURES[cheapest_evidence(Case.of(self._step(turn)[1]).drill)].look
            others = [option for option in options if option not in (KNOWN, LIVE, decides)]
            if int(name.removeprefix("look")) < self.who.looks and others:
                return others[0]
            return decides if self.who.finds and decides in options else KNOWN
        right = super()._pick(turn, want)
        return (
            right
            if self._is_right(turn.id)
            else self.rng.choice([option for option in options if option != right] or options)
        )

    def _hypothesis(self, turn: Turn, want: Hypothesis) -> dict[str, Any]:
        right = super()._hypothesis(turn, want)
        named = right["evidence"] or list(want.figures[:1])
        if self._is_right(turn.id):
            return {**right, "evidence": named}
        cause = self.rng.choice([name for name, _ in want.causes if name != right["cause"]])
        return {**right, "cause": cause, "evidence": list(want.figures[-1:])}

    def _program(self, want: Program) -> dict[str, Any]:
        self.persona = "excellent" if self.who.tries else "wrong"
        done = super()._program(want)
        self.persona = "excellent"
        return {**done, "tries": max(1, self.who.tries)}


class Attacker(Person, Cheater):
    """A person who knows nothing. Options are random, numbers are those of the question, all marks are hits."""

    rating = 5

    def __init__(self, name: str, session: Session, runner: Runner) -> None:
        super().__init__(KINDS.get(name, "nonsense"), session, runner)
        self.name, self.share, self.is_corrected = name, 1.0, False

    def reply(self, turn: Turn) -> tuple[dict[str, Any], float]:
        if self.name == "ticker" and isinstance(turn.want, Ask) and turn.stage == "probe":
            return {"pass": True}, 5.0
        reply, seconds = super().reply(turn)
        return reply, min(seconds, 2.0) if self.name == "rusher" else seconds

    def corrected(self, turn: Turn) -> dict[str, Any]:
        if self.name != "outside":
            return super().corrected(turn)
        self.is_corrected = True
        try:
            return self.reply(turn)[0]
        finally:
            self.is_corrected = False

    def _prose(self, turn: Turn) -> dict[str, Any]:
        told = super()._prose(turn)
        if self.name in ATTACKS and "text" in told:
            return {"text": ATTACKS[self.name][1](*self._step(turn), self.rng)}
        if self.name == "ticker":
            return {"text": TICKED}
        if self.name == "yes-sayer":
            return {
                "text": f"Yes, exactly, I agree. {self._step(turn)[0].scenario.title}: yes, that is how it is."
            }
        return {"text": VAGUE} if self.name == "rusher" else told

    def _ask(self, instance: Instance) -> dict[str, Any]:
        return {**super()._ask(instance), "confidence": 95}

    def _option(self, instance: Instance) -> int:
        return 0 if self.name in ("rusher", "yes-sayer") else super()._option(instance)

    def _pick(self, turn: Turn, want: Menu) -> str:
        return want.options[0][0] if self.name in ("rusher", "yes-sayer") else super()._pick(turn, want)

    def _number(self, instance: Instance, name: str) -> dict[str, str]:
        answer = next(each for each in instance.question.answers if each.id == name)
        found = super()._number(instance, name)
        if answer.type not in ("int", "float"):
            return found
        value, low, high = float(found[name].replace(",", "")), 1 / 1.3, 1.3
        if answer.unit == "%":
            value = 250.0 if self.name == "outside" and not self.is_corrected else min(value, 90.0)
        if self.name == "wide":
            low, high = 0.01, 100.0
        elif self.name == "outside" and not self.is_corrected:
            low, high = 2.0, 3.0
        if answer.unit == "%" and (self.name != "outside" or self.is_corrected):
            high = min(high, 100 / value)
        sign = " %" if answer.unit == "%" else ""  # a bare 1 may be 1 % or 100 %
        replies = {name: f"{value:.0f}{sign}"}
        if answer.interval is not None:
            replies[f"{name}.interval"] = f"{value * low:.6g}{sign} .. {value * high:.6g}{sign}"
        return replies


def person(name: str, session: Session, runner: Runner) -> Person:
    """Return the candidate of a name in EVERY_NAME."""
    players = {each.name: each for each in (*LADDER, HONEST, *(each for each, _ in PEOPLE.values()))}
    return Player(players[name], session, runner) if name in players else Attacker(name, session, runner)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a session."""

    recommendation: str
    axes: dict[str, float | None]
    observations: dict[str, int] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        seen = [value for value in self.axes.values() if value is not None]
        return sum(seen) / len(seen) if seen else 0.0

    @property
    def key(self) -> tuple[int, float]:
        """Return what outcomes are compared by: the recommendation, then the mean mark."""
        ranks = [*rubric()["recommendations"]["mid"]][::-1]
        rank = ranks.index(self.recommendation) + 1 if self.recommendation in ranks else 0
        return rank, round(self.mean, 6)


def outcome(name: str, scenario: str, level: str, runner: Runner) -> Outcome:
    """Hold a session of one scenario, and return what its report says."""
    role, started = scenario.partition(".")[0], "2026-01-05T09:00:00+00:00"
    spec = with_rules(Spec(f"{name}-{scenario}", role, level, 45, 3, (scenario,), "", started=started))
    with Session.start(spec, SCENARIOS) as session:
        person(name, session, runner).hold()
        report = make(session)
    return Outcome(
        report.recommendation,
        {row.axis: row.machine for row in report.axes},
        {row.axis: row.observations for row in report.axes},
    )


def scenarios(level: str) -> list[str]:
    """Return the ids of the scenarios of a level."""
    read = (yaml.safe_load(path.read_text()) for path in sorted((MOCK / "scenarios").glob("*/*.yaml")))
    return [each["id"] for each in read if each["level"] == level]


def violations(level: str, runner: Runner, chosen: Sequence[str] = ()) -> list[str]:
    """Hold scenarios of a level, print a table of the outcomes, and return what the rubric does not allow.

    chosen: ids; by default all. Each violation begins with its kind: order, attacker, people, honest or unobserved."""
    found: list[str] = []
    for scenario in chosen or scenarios(level):
        marks = {name: outcome(name, scenario, level, runner) for name in EVERY_NAME}
        for name, mark in marks.items():
            shown = " ".join(f"{mark.axes.get(axis) or '-':>3}" for axis in AXES)
            print(f"{scenario:32} {name:10} {mark.recommendation:12} {mark.mean:4.2f}  {shown}", flush=True)
        found += [f"{each} ({scenario})" for each in compared(marks)]
    return found


def compared(marks: dict[str, Outcome]) -> Iterator[str]:
    """Yield the violations of one scenario."""

    def words(name: str) -> str:
        return f"{name} has {marks[name].recommendation}, {marks[name].mean:.2f}"

    for better, worse in zip(LADDER, LADDER[1:], strict=False):
        if marks[better.name].key <= marks[worse.name].key:
            yield f"order: {words(better.name)}; {words(worse.name)}"
    for name in ATTACKERS:
        if marks[name].key > marks["weak"].key:
            yield f"attacker: {words(name)}; {words('weak')}"
    for name, (_, below) in PEOPLE.items():
        if marks[name].key < marks[below.name].key:
            yield f"people: {words(name)}; {words(below.name)}"
    if marks["honest"].key < marks["bluffer"].key:
        yield f"honest: {words('honest')}; {words('bluffer')}"
    for name, mark in marks.items():
        missing = [axis for axis in AXES if axis not in mark.axes]
        unmarked = [
            axis for axis, seen in mark.observations.items() if seen == 0 and mark.axes[axis] is not None
        ]
        if missing or unmarked:
            yield f"unobserved: {name} lacks {missing}, and has marks without observations for {unmarked}"


if __name__ == "__main__":  # python -m tests.interview.personas LEVEL: an hour for all scenarios
    with Runner() as runner:
        for violation in violations(sys.argv[1], runner, sys.argv[2:]):
            print(violation)
