"""Points for prose: probes that follow from each key point, and what the learner marked, kept apart and then added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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
    """By the learner."""
    probes: tuple[bool, ...]
    """Its machine-graded questions, as far as they were asked."""
    mark: Mark
    """What counts: a hit whose probe failed is partial."""

    @property
    def is_downgraded(self) -> bool:
        return self.mark != self.marked

    @property
    def probe_share(self) -> float | None:
        """Share of probes that were right; None if none was asked."""
        return sum(self.probes) / len(self.probes) if self.probes else None


@dataclass(frozen=True)
class FreeGraded:
    """A whole answer in prose."""

    points: tuple[PointScore, ...]
    share: float
    """0 to 1."""
    grader: Literal["probe", "self"]
    """self: no probe was asked, so that nothing but the learner's own marks counts."""

    @property
    def all_right(self) -> bool:
        """Every point that must be there is, nothing is contradicted."""
        return all(point.mark != "contradicted" for point in self.points) and all(
            point.mark == "hit" for point in self.points if point.must
        )


def score(
    points: Sequence[KeyPoint], self_marks: Mapping[str, Mark], probes: Mapping[str, Sequence[bool]]
) -> FreeGraded:
    """0.6 probes + 0.4 self marks, each by the points' weights.

    self_marks: key point id -> mark; a point without one is missed. probes: key point id -> which of its probes were
    answered right; points without probes count among the self marks only.
    """
    scored = tuple(
        _point(point, self_marks.get(point.id, "miss"), tuple(probes.get(point.id, ()))) for point in points
    )
    marked = _mean([(point.weight, VALUE[point.mark]) for point in scored])
    probed = [(point.weight, point.probe_share) for point in scored if point.probe_share is not None]
    if not probed:
        return FreeGraded(scored, marked, "self")
    return FreeGraded(scored, PROBE_SHARE * _mean(probed) + (1 - PROBE_SHARE) * marked, "probe")


def over_marking(scores: Sequence[PointScore]) -> float | None:
    """Mean of own marks minus probes, -1 to 1: how much the learner thinks better of the answer than its probes do.

    None without probes.
    """
    gaps = [VALUE[point.marked] - point.probe_share for point in scores if point.probe_share is not None]
    return sum(gaps) / len(gaps) if gaps else None


def _point(point: KeyPoint, marked: Mark, probes: tuple[bool, ...]) -> PointScore:
    mark: Mark = "partial" if marked == "hit" and not all(probes) else marked
    return PointScore(point.id, point.say, point.weight, point.must, marked, probes, mark)


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    total = sum(weight for weight, _ in weighted)
    return sum(weight * value for weight, value in weighted) / total if total else 0.0
