"""The state of a conversation: what was asked, what was said, what it is evidence of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from interview.mock.drawn import Drawn
from interview.mock.evidence import Evidence, value_of
from interview.mock.scenario import Step
from interview.mock.turns import Turn, Want


@dataclass(frozen=True)
class Heard:
    """A reply and the seconds that the candidate took for it."""

    reply: dict[str, Any]
    seconds: float


Conversation = Generator[Turn, Heard, None]
"""Yields turns, is sent what was heard."""


@dataclass(frozen=True)
class Spec:
    """Everything that a session begins with: the same spec and the same replies give the same session."""

    id: str
    role: str
    level: str
    minutes: int
    seed: int
    scenarios: tuple[str, ...]
    warm: str
    """Id of the bank's question for the beginning; "" for none."""
    coach: bool = False
    """Tell verdicts during the session."""
    digests: dict[str, str] = field(default_factory=dict)
    """Scenario, or `warm_key` of the bank's question -> hash of its content."""
    started: str = ""
    """ISO time."""
    skips_said: bool = False
    """Leave out follow-ups that ask for a number which the answer gives. Logs of earlier versions have their turns."""
    comes_back: bool = False
    """Ask follow-ups at the end for which there was no place. Logs of earlier versions end without them."""
    marks_late: bool = False
    """Show the key points of an answer after all its probes, also those at the end. Logs of earlier versions show
    them after the answer."""


def with_rules(spec: Spec) -> Spec:
    """Return the spec of a new session, which follows the rules of this version."""
    return replace(spec, skips_said=True, comes_back=True, marks_late=True)


def warm_key(question_id: str) -> str:
    """Return the key of the bank's question among the steps of a session."""
    return f"warm/{question_id}"


@dataclass
class Asked:
    """One step of the session, for the report."""

    key: str
    """Scenario and step: "inference.stalled_streams/path"; "warm/<question>" for the first question."""
    stage: str
    form: str
    say: str
    minutes: float
    axes: tuple[str, ...] = ()
    seconds: float = 0.0
    why: str = ""
    """Reason for a follow-up, such as "missing:chunk"."""
    replies: dict[str, Any] = field(default_factory=dict)
    """The candidate's answers: {"text"}, {"replies", "confidence"}, {"values"}, {"looks", "cause", "fixes"} ..."""
    clarified: list[dict[str, str]] = field(default_factory=list)
    """{"asked", "told"}; told is "" for a question that no fact answers."""
    heard: dict[str, str] = field(default_factory=dict)
    """Key point -> claimed, missing or contradicted, by the nearest words: only a reason to ask, never a mark."""
    marks: dict[str, str] = field(default_factory=dict)
    probes: dict[str, list[bool]] = field(default_factory=dict)
    rows: list[tuple[str, str, str, bool]] = field(default_factory=list)
    """(what, said, measured, right)."""
    run: dict[str, Any] = field(default_factory=dict)
    """{"name", "args", "result"} or {"name", "args", "failed"}."""
    explain: str = ""
    reaction: str = ""
    """The interviewer's words about an answer that is far off, or that a run contradicts."""
    rescued: bool = False
    passed: bool = False
    all_right: bool | None = None
    cause_right: bool | None = None
    """Whether the cause of an incident was right: its confidence is about nothing else."""
    makes_a_point: bool = False
    """Whether prose comes near a key point, in words that the interviewer did not say."""
    explains: bool = False
    """Whether prose has the length and the sentences of an explanation, most of them about the question."""
    lacks: tuple[str, ...] | None = None
    """Faults of prose that keep it from carrying a "yes", such as too few words. None before it is judged."""
    intervals: list[bool] = field(default_factory=list)
    """Whether each interval held."""
    boundless: int = 0
    """Intervals that are too wide to say anything."""
    confidence: int | None = None
    value: float | None = None
    """Mean of its evidence; None without any."""


class LeftOut(NamedTuple):
    """A follow-up for which there was no place after its step."""

    drawn: Drawn
    step: Step
    asked: Asked
    follow_up: Step
    why: str

    @property
    def is_probe(self) -> bool:
        """Return whether it tests a key point, which shows its answer."""
        return any(self.follow_up.id in point.probes for point in self.step.keypoints)


@dataclass
class Talk:
    """The conversation so far."""

    spec: Spec
    asked: list[Asked] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    ratings: dict[str, int] = field(default_factory=dict)
    elapsed: float = 0.0
    """Seconds of the candidate's replies."""
    preface: str = ""
    """Words that go before the next turn: what a run showed."""
    chart: dict[str, Any] | None = None
    left_out: list[LeftOut] = field(default_factory=list)
    """Follow-ups that the number of follow-ups left out, in the order of their steps."""
    unmarked: list[tuple[Drawn, Step, Asked]] = field(default_factory=list)
    """Prose whose key points wait until the interviewer has come back to its probes."""
    unreached: list[str] = field(default_factory=list)
    """Keys of the steps that time, or the choice of follow-ups, left out."""

    def begin(self, key: str, step: Step | None, stage: str, form: str, say: str, minutes: float) -> Asked:
        asked = Asked(key, stage, form, say, minutes, tuple(step.axes) if step is not None else ())
        self.asked.append(asked)
        return asked

    def turn(self, asked: Asked, name: str, say: str, want: Want, *, began: bool = False) -> Turn:
        """Return a turn of a step, with what is left to say about the step before."""
        told = "\n\n".join(text for text in (self.preface, say) if text)
        turn = Turn(
            f"{asked.key}#{name}",
            asked.stage,
            told,
            want,
            asked.minutes,
            began,
            self.chart,
            before=self.preface,
        )
        self.preface, self.chart = "", None
        return turn

    def hear(self, asked: Asked, heard: Heard) -> dict[str, Any]:
        asked.seconds += heard.seconds
        self.elapsed += heard.seconds
        return heard.reply

    def note(self, asked: Asked, evidence: list[Evidence]) -> None:
        """Keep the evidence of a step."""
        self.evidence += evidence
        asked.value = value_of(asked.key, self.evidence)

    def observations(self) -> Counter[str]:
        return Counter(piece.axis for piece in self.evidence)
