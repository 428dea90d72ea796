"""A drill in an interview: its recorded figures, or those of a live run, as looks, rows and marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from interview.drills import looks
from interview.drills.applies import NOTHING, figures_of_drill
from interview.drills.checking import recorded
from interview.drills.commands import commands
from interview.drills.debrief import named
from interview.drills.drill import Drill, causes, find_drill
from interview.drills.figures import FIGURES, LOOKS, Figures
from interview.drills.score import WANTED, Guess, Score, score
from interview.mock import evidence
from interview.mock.scenario import Step
from interview.mock.talk import Asked, Talk
from interview.mock.turns import Hypothesis

WIDTH = 74
"""Characters of a line of a look: with its margin it fits into 80 columns."""


@dataclass
class Case:
    """A drill in an interview: the figures of its two runs, and the lines of looks that have more than figures."""

    drill: Drill
    healthy: Figures
    faulty: Figures
    good: dict[str, float]
    """"healthy", "faulty" and each fix, as its number -> share of good requests."""
    details: dict[str, list[str]] = field(default_factory=dict)
    is_live: bool = False

    @classmethod
    def of(cls, step: Step) -> Case:
        """Return the case of a step, from the recorded figures."""
        assert step.incident is not None
        drill = find_drill(step.incident.drill)
        proof = recorded()[drill.id]
        case = cls(drill, proof.healthy, proof.faulty, proof.good)
        stage, _ = drill.changed(drill.fault)
        case.details["config"] = commands(stage)
        return case

    def take(self, result: dict[str, Any]) -> None:
        """Show a live run instead of the recorded figures."""
        self.healthy, self.faulty, self.details = result["healthy"], result["faulty"], result["details"]
        self.good |= result["good"]
        self.is_live = True

    @property
    def opening(self) -> str:
        """Return what the person on call knows before the first look."""
        what = "A run on this machine" if self.is_live else "A recorded run of servers on one machine"
        return (
            f"{what}. {self.drill.title}. Objective: {self.drill.objective.in_words}. Today "
            f"{self.good['faulty']:.0%} of the requests meet it, yesterday {self.good['healthy']:.0%} did."
        )

    def looks_left(self, looked: list[str]) -> list[str]:
        """Return the looks that show something and were not taken."""
        return [name for name in self.all_looks if name not in looked and self._shows(name)]

    @property
    def all_looks(self) -> list[str]:
        """Return the looks of this drill; at the end those that only a run on this machine can show."""
        apply = [name for name in LOOKS if name != "replicas" or self._rows(name)]
        return sorted(apply, key=lambda name: not self._rows(name) and name not in (*NOTHING, "config"))

    def _shows(self, name: str) -> bool:
        return bool(self._rows(name) or self.details.get(name) or name in NOTHING)

    def shown(self, name: str) -> str:
        """Return a look as Markdown: its details and its figures, verbatim."""
        rows = self._rows(name)
        details = self.details.get(name, []) if rows or name not in NOTHING else [NOTHING[name]]
        lines = looks.in_lines(details, rows, WIDTH)
        return "\n".join([f"{name}: {LOOKS[name].shows}", "", "```text", *lines, "```"])

    def _rows(self, name: str) -> list[looks.Row]:
        return looks.rows(name, self.faulty, self.healthy, figures_of_drill(self.drill.id))

    @property
    def causes(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, causes()[name]) for name in self.drill.hypotheses)

    def hypothesis(self, looked: list[str]) -> Hypothesis:
        """Return the form of a hypothesis: causes of the drill, figures of the looks that were taken."""
        seen = looks.figures_of(looked) & figures_of_drill(self.drill.id)
        return Hypothesis(self.causes, tuple(name for name in FIGURES if name in seen))

    @property
    def fixes(self) -> tuple[tuple[str, str], ...]:
        return tuple((str(number), fix.say) for number, fix in enumerate(self.drill.fixes, 1))

    @property
    def debrief(self) -> str:
        """Return the mechanism, and the question that excludes the runner-up."""
        drill = self.drill
        runner_up = causes()[drill.debrief.runner_up].rstrip(".")
        return f'{drill.debrief.say} To exclude "{runner_up}", ask: {drill.debrief.question}'

    @property
    def model_answer(self) -> str:
        """Return an answer with all points: the cheapest deciding look, the cause and a right fix."""
        name = cheapest_evidence(self.drill)
        row = next(entry for entry in self._rows(FIGURES[name].look) if entry.figure == name)
        fix = self.drill.fixes[self.drill.right_fixes[0] - 1].say
        return (
            f'The look "{FIGURES[name].look}" decides: {row.says} is {row.now}, and was {row.before}. '
            f"{causes()[self.drill.cause]} {fix}."
        )

    def score(self, said: dict[str, Any], seconds: float) -> Score:
        """Return the score of a drill, as `prep drill` gives it. said: looks, cause, confidence, evidence and fixes."""
        guess, fixes = Guess(said["cause"], said["confidence"], said["evidence"]), said["fixes"]
        is_fixed = bool(fixes) and self.drill.is_met(self.good[fixes[-1]])
        return score(self.drill, said["looks"], [guess], len(fixes) if is_fixed else None, seconds)

    def judge(self, talk: Talk, asked: Asked, axes: Sequence[str]) -> Score:
        """Keep rows, evidence and debrief of an incident whose replies are in `asked`. Return its score."""
        guess, fixes = asked.replies, asked.replies["fixes"]
        result = self.score(guess, asked.seconds)
        texts = dict(self.causes)
        right = texts[self.drill.cause]
        said = named(guess["evidence"]) or "none"
        asked.rows = [
            ("cause", texts[guess["cause"]], right, result.cause > 0),
            ("figures that decide", said, named(self.drill.evidence, " or "), result.evidence > 0),
            *self.rows_of(fixes),
        ]
        asked.confidence, asked.all_right = guess["confidence"], result.is_solved
        asked.cause_right = result.cause > 0
        asked.explain, asked.replies["drill"] = self.debrief, self.drill.code
        talk.note(
            asked,
            evidence.of_drill(
                result, len(fixes), axes, asked.key, guess["confidence"], least=least_cost(self.drill)
            ),
        )
        return result

    def rows_of(self, fixes: list[str]) -> Iterator[tuple[str, str, str, bool]]:
        """Yield a row per repair: the objective, the repair, the share of good requests, whether it is met."""
        texts = dict(self.fixes)
        for name in fixes:
            good = self.good[name]
            yield self.drill.objective.in_words, texts[name], f"{good:.0%} good", self.drill.is_met(good)


def cheapest_evidence(drill: Drill) -> str:
    """Return the deciding figure whose look costs least."""
    return min(drill.evidence, key=lambda name: LOOKS[FIGURES[name].look].cost)


def least_cost(drill: Drill) -> int:
    """Return the cost of the cheapest looks that show all figures which a full score names."""
    groups = combinations(drill.evidence, min(WANTED, len(drill.evidence)))
    return min(
        sum(LOOKS[name].cost for name in {FIGURES[figure].look for figure in group}) for group in groups
    )


def look_words(name: str) -> str:
    return f"{name} (costs {LOOKS[name].cost}): {LOOKS[name].shows}"
