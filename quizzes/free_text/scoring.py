"""Key points of prose and their points: the probes of each and the learner's own marks, weighted and added."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quizzes.instance import Instance
from quizzes.question import KeyPoint

Mark = Literal["hit", "partial", "miss", "contradicted", "unsure"]
PROBE_SHARE = 0.6
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
    """Mark that counts: a hit whose probe failed is partial."""

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
    grader: Literal["probe", "self"]
    """self: no probe was asked, so only the learner's own marks count."""

    @property
    def all_right(self) -> bool:
        """Return whether every required point is hit and no point is contradicted."""
        marks = [point.mark for point in self.points]
        return "contradicted" not in marks and all(point.mark == "hit" for point in self.points if point.must)


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
    points: Sequence[KeyPoint], self_marks: Mapping[str, Mark], probes: Mapping[str, Sequence[bool]]
) -> FreeGraded:
    """Return 0.6 x probes + 0.4 x self marks, each weighted by the points' weights.

    self_marks: key point id -> mark; the default is "miss". probes: key point id -> results of its probes; points
    without probes count only among the self marks.
    """
    scored = tuple(
        _point(point, self_marks.get(point.id, "miss"), tuple(probes.get(point.id, ()))) for point in points
    )
    marked = _mean([(point.weight, VALUE[point.mark]) for point in scored])
    probed = [(point.weight, point.probe_share) for point in scored if point.probe_share is not None]
    if not probed:
        return FreeGraded(scored, marked, "self")
    return FreeGraded(scored, PROBE_SHARE * _mean(probed) + (1 - PROBE_SHARE) * marked, "probe")


def _point(point: KeyPoint, marked: Mark, probes: tuple[bool, ...]) -> PointScore:
    mark: Mark = "partial" if marked == "hit" and not all(probes) else marked
    return PointScore(point.id, point.say, point.weight, point.must, marked, probes, mark)


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    total = sum(weight for weight, _ in weighted)
    return sum(weight * value for weight, value in weighted) / total if total else 0.0
