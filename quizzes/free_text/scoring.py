"""Key points of prose and their points: the probes of each and its mark, weighted and added.

The mark is a judge's where one is sure, else the learner's own. An answer has one of these outcomes:

    right     a judge hears every required point; no point is contradicted
    reviewed  every required point is hit, by the learner's own mark and right probes or by a judge
    partly    some required point is made, whole or in part
    wrong     anything else: no required point is made, whatever its probes say, or the text is about something else

Only a judge makes prose right: no other rule here tells long nonsense in the words of the points, or a wrong statement
in other words, from an answer. A reviewed answer counts as remembered, since its probes were right, but in no statistic
of right answers. A right or reviewed answer is about the question (RELATED), and is neither a list of terms nor shorter
than 25 words. A sentence that turns a point around contradicts it, unless a judge is sure of another mark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quizzes.free_text.lints import is_salad
from quizzes.free_text.polarity import is_opposite
from quizzes.free_text.sentences import closest, sentences, stems, words
from quizzes.instance import Instance
from quizzes.question import KeyPoint

Mark = Literal["hit", "partial", "miss", "contradicted", "unsure"]
Outcome = Literal["right", "reviewed", "partly", "wrong"]
PROBE_SHARE = 0.6
SHORTEST = 25
"""Words of the shortest answer that can be right or reviewed."""
RELATED, RELATED_TO_MODEL = 0.25, 0.4
"""Least share of an answer's words that the key points have, too; and that they or a model answer have."""
NEAR = 0.3
"""Mean nearness to the key points that is enough besides: long answers have many other words.

With a model answer, 60 of 60 right answers in other words than the bank's are related, and 7 % of answers to questions
on other topics (`tests/quizzes/test_prose_answers.py`)."""
VALUE: dict[Mark, float] = {"hit": 1.0, "partial": 0.5, "miss": 0.0, "contradicted": 0.0, "unsure": 0.0}


@dataclass(frozen=True)
class PointScore:
    """One key point."""

    id: str
    say: str
    weight: float
    must: bool
    marked: Mark
    """Mark by the learner."""
    probes: tuple[bool, ...]
    """Results of its machine-graded questions that were asked."""
    mark: Mark
    """Mark that counts: the judge's if it is sure, contradicted if a sentence turns the point around, else the
    learner's; a hit whose probe failed is partial."""
    is_heard: bool
    """Whether a judge hears it in the answer."""

    @property
    def is_made(self) -> bool:
        """Return whether the answer makes the point, whole or in part."""
        return self.mark in ("hit", "partial")

    @property
    def is_checked(self) -> bool:
        """Return whether a right probe or a judge supports the mark."""
        return self.is_heard or any(self.probes)

    @property
    def probe_share(self) -> float | None:
        """Return the share of right probes; None if none was asked."""
        return sum(self.probes) / len(self.probes) if self.probes else None


@dataclass(frozen=True)
class FreeGraded:
    """A graded answer in prose."""

    points: tuple[PointScore, ...]
    share: float
    """0 to 1."""
    grader: Literal["probe", "judge", "self"]
    """judge: no probe was asked; self: neither a probe nor a judge checked any mark."""

    is_on_topic: bool = True
    """Whether the answer is about the question."""
    is_explained: bool = True
    """Whether the answer has SHORTEST words and is no list of terms."""

    @property
    def outcome(self) -> Outcome:
        """Return the outcome. Without a required point, some point must be hit."""
        required = [point for point in self.points if point.must]
        hit = [point for point in required or self.points if point.mark == "hit" and point.is_checked]
        is_whole = len(hit) == len(required) if required else bool(hit)
        is_related = self.is_on_topic or any(point.is_heard for point in self.points)
        if not is_related or not any(point.is_made for point in required or self.points):
            return "wrong"
        if (
            not is_whole
            or not self.is_explained
            or any(point.mark == "contradicted" for point in self.points)
        ):
            return "partly"
        heard = [point.is_heard for point in hit]
        return "right" if (all(heard) if required else any(heard)) else "reviewed"

    @property
    def all_right(self) -> bool:
        return self.outcome == "right"

    @property
    def earned(self) -> float:
        """Return the share of the points that the answer earns, 0 to 1: right probes earn nothing for a wrong text."""
        return 0.0 if self.outcome == "wrong" else self.share


def key_points(instance: Instance, **more: Any) -> list[KeyPoint]:
    """Render the key points with the numbers of an instance. more: result and expected, if the texts use them.

    Raises QuestionError.
    """

    def rendered(texts: list[str]) -> list[str]:
        return [instance.render(text, **more) for text in texts]

    return [
        point.model_copy(
            update={"say": rendered([point.say])[0], "good": rendered(point.good), "bad": rendered(point.bad)}
        )
        for point in instance.question.keypoints
    ]


def score(
    points: Sequence[KeyPoint],
    self_marks: Mapping[str, Mark],
    probes: Mapping[str, Sequence[bool]],
    judged: Mapping[str, Mark] | None = None,
    answer: str | None = None,
    model_answer: str = "",
) -> FreeGraded:
    """Return 0.6 x probes + 0.4 x marks, each weighted by the points' weights.

    self_marks: key point id -> mark; the default is "miss". probes: key point id -> results of its probes, False for a
    skipped one; points without probes count only among the marks. judged: marks of a judge that passed its canaries.
    answer: the text; without it, the learner's marks are not compared with it. model_answer: words that belong to the
    question, too.
    """
    judged = judged or {}
    is_on_topic = answer is None or is_about(points, answer, model_answer)
    is_explained = answer is None or (len(words(answer)) >= SHORTEST and not is_salad(answer))
    turned = {
        point.id
        for point in points
        if any(is_opposite(sentence, point) for sentence in sentences(answer or ""))
    }
    said: dict[str, Mark] = {
        point.id: "contradicted" if point.id in turned else self_marks.get(point.id, "miss")
        for point in points
    }
    scored = tuple(
        _point(
            point,
            self_marks.get(point.id, "miss"),
            said[point.id] if is_on_topic else "miss",
            tuple(probes.get(point.id, ())),
            judged.get(point.id, "unsure"),
        )
        for point in points
    )
    marked = _mean([(point.weight, VALUE[point.mark]) for point in scored])
    probed = [(point.weight, point.probe_share) for point in scored if point.probe_share is not None]
    if not probed:
        is_judged = any(mark != "unsure" for mark in judged.values())
        return FreeGraded(scored, marked, "judge" if is_judged else "self", is_on_topic, is_explained)
    share = PROBE_SHARE * _mean(probed) + (1 - PROBE_SHARE) * marked
    return FreeGraded(scored, share, "probe", is_on_topic, is_explained)


def is_about(points: Sequence[KeyPoint], answer: str, model_answer: str = "") -> bool:
    """Return whether an answer uses the words of the key points, in right or wrong phrasings, or of a model answer."""
    said = stems(answer)
    phrasings = [phrasing for point in points for phrasing in (point.say, *point.good, *point.bad)]
    known = {name for phrasing in (*phrasings, model_answer) for name in stems(phrasing)}
    near = sum(match.overlap for point in points if (match := closest(point, answer)) is not None)
    least = RELATED_TO_MODEL if model_answer else RELATED
    return len(said & known) >= least * max(1, len(said)) or near >= NEAR * len(points)


def model_answer(instance: Instance) -> str:
    """Return the short and the long model answer of a question; "" without one."""
    interview = instance.question.interview
    return "" if interview is None else instance.render(f"{interview.short} {interview.long}")


def _point(point: KeyPoint, marked: Mark, heard: Mark, probes: tuple[bool, ...], judged: Mark) -> PointScore:
    said = heard if judged == "unsure" else judged
    mark: Mark = "partial" if said == "hit" and not all(probes) else said
    return PointScore(point.id, point.say, point.weight, point.must, marked, probes, mark, judged == "hit")


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    total = sum(weight for weight, _ in weighted)
    return sum(weight * value for weight, value in weighted) / total if total else 0.0
