"""Scripted candidates who know nothing and want a good mark: they write fluent prose, mark it as right, and guess.

nonsense    sentences about something else, with figures        echo    what the interviewer has just said
stuffing    the terms of the key points in one empty sentence, and always the longest option
framing     the same in a sentence half of whose words are terms
varying     the same in sentences that all have different function words
denying     the key points, each of them denied
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import cycle
from random import Random
from typing import Any

from interview.mock.candidates import Candidate
from interview.mock.coding import check, start
from interview.mock.session import Session
from interview.mock.turns import Ask, Form, Hypothesis, Menu, Program, Turn
from quizzes.experiments.runner import Runner
from quizzes.free_text.sentences import FUNCTION_WORDS, words
from quizzes.instance import Instance

CHEATERS = ("nonsense", "echo", "stuffing", "framing", "varying", "denying")
FRAMES = {
    "stuffing": ("It is because of the {} that we have a {}, and so it is.",),
    "framing": ("If {} is {}, the {} of {} has {}.",),
    "varying": (
        "It is because of the {} that we have a {}, and so it is.",
        "There was some {} from which you would have had to be at the {}.",
        "When there is a {}, all of it must then be in the {} as well.",
        "That is why each {} may be over the {} more than once.",
        "Who has a {} should not be without any {} of the same.",
        "So if they do the {}, it will be up to the {} how they do it.",
        "Some of us had {} before, but none had the {} at that.",
        "What we could do here is to have no {} until we have the {}.",
        "Now that this {} is on, the {} is off for the other one.",
        "Either you were at the {} or it was the {} that you had.",
        "Because he did it with a {}, she may not have had such a {}.",
        "Which of these is in the {} is up to them that have a {}.",
    ),
}
"""Sentences that cheaters fill with terms."""
DENIALS = ("I would never say that {}.", "I deny that {}.", "It is wrong that {}.")
"""Frames around key points."""
TERMS = 24
NONSENSE = (
    "My grandmother says that soup is best when it is cold and blue. She has 7 umbrellas and took 3 of them to a "
    "picnic in the desert. Why would you paint a fence, if not for the goats that live behind it? In the end we went "
    "home and had 2 buckets of milk. It was a Tuesday, and the mountain has never been so green in all of its life. "
)
WIDE = 5.4
"""Ends of an interval are this many times smaller and larger than its number: just not too wide to count."""


def filled(frames: Sequence[str], terms: Sequence[str]) -> str:
    """Return the frames in turn, filled with the terms until too few are left."""
    left, said = list(terms), []
    for frame in cycle(frames):
        count = frame.count("{}")
        if len(left) < count:
            return " ".join(said)
        said.append(frame.format(*left[:count]))
        left = left[count:]
    return ""


def denied(statements: Sequence[str]) -> str:
    """Return an answer that denies each statement."""
    return " ".join(
        frame.format(re.sub(r"[.;:!?]\s", ", ", each[0].lower() + each[1:].rstrip(".")))
        for frame, each in zip(cycle(DENIALS), statements, strict=False)
    )


class Cheater(Candidate):
    """Replies to every turn without knowing anything."""

    def __init__(self, kind: str, session: Session, runner: Runner) -> None:
        super().__init__("excellent", session, runner)
        self.kind = kind
        self.rng = Random(f"{kind}:{session.spec.id}")

    def _mark(self) -> str:
        return "hit"

    def _prose(self, turn: Turn) -> dict[str, Any]:
        drawn, step = self._step(turn)
        if step.id not in self._clarified and step.stage == "core":
            self._clarified.add(step.id)
            return {"clarify": f"What about the {drawn.scenario.clarifications[0].words[0]}?"}
        if self.kind == "nonsense":
            return {"text": NONSENSE}
        if self.kind == "echo":
            return {"text": f"{drawn.text(drawn.scenario.brief)} {drawn.wording(step)}"}
        if self.kind == "denying":
            return {"text": denied([point.say for point in drawn.key_points(step)])}
        terms = [w for p in drawn.key_points(step) for w in words(p.say) if w not in FUNCTION_WORDS]
        return {"text": filled(FRAMES[self.kind], terms[:TERMS])}

    def _ask(self, instance: Instance) -> dict[str, Any]:
        replies: dict[str, str] = {}
        for name in Ask(instance).keys:
            if name == "choice":
                replies[name] = str(1 + self._option(instance))
            elif not name.endswith(".interval"):
                replies |= self._number(instance, name)
        return {"replies": replies, "confidence": 90}

    def _option(self, instance: Instance) -> int:
        texts = [instance.render(choice.text) for choice in instance.choices()]
        return texts.index(max(texts, key=len)) if self.kind in FRAMES else self.rng.randrange(len(texts))

    def _number(self, instance: Instance, name: str) -> dict[str, str]:
        """Return a number of the question as the answer, with the widest interval that counts."""
        answer = next(each for each in instance.question.answers if each.id == name)
        found = [float(each.replace(",", "")) for each in re.findall(r"\d[\d,]*", instance.prompt)]
        value = self.rng.choice([each for each in found if each] or [10.0])
        replies = {name: "yes" if answer.type == "bool" else f"{value:.0f}"}
        if answer.interval is not None:
            replies[f"{name}.interval"] = f"{value / WIDE:.6g} .. {value * WIDE:.6g}"
        return replies

    def _form(self, turn: Turn, want: Form) -> dict[str, Any]:
        values = {
            pick.id: pick.options[-1] if pick.options else int(pick.hi or 0) if pick.whole else pick.hi
            for pick in want.fields
        }
        return {"values": values, "commit": True}

    def _pick(self, turn: Turn, want: Menu) -> str:
        return self.rng.choice([name for name, _ in want.options])

    def _hypothesis(self, turn: Turn, want: Hypothesis) -> dict[str, Any]:
        cause, _ = self.rng.choice(want.causes)
        evidence = [self.rng.choice(want.figures)] if want.figures else []
        return {"cause": cause, "confidence": 90, "evidence": evidence}

    def _program(self, want: Program) -> dict[str, Any]:
        source = start(want.code)
        done = check(want.code, source)
        return {"source": source, "passed": done.passed, "failed": done.failed or ["loads"], "tries": 1}
