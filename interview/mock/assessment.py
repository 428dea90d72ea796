"""From evidence to marks: six axes from 1 to 5, a recommendation for the level, strengths and gaps.

An axis with fewer than two observations is "not observed", never a number. Machine evidence decides; the candidate's
own rating, and a judge's if one is configured, stand beside it and change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from common.text import join_and
from interview.mock.evidence import UNSURE, Evidence
from interview.mock.scenario import AXES
from interview.mock.talk import Asked, Talk

LEAST = 2
"""Observations that an axis needs. An explanation with its probes counts as two."""
FAR_OFF = 2
"""Difference between own rating and mark that is called out."""
STRONG, WEAK = 4.0, 3.5
DOUBTFUL = 3.0
"""Value of a single observation below which an axis without a mark is in doubt."""
PRAISE = ("strong yes", "yes")
"""Recommendations that need a mark on each axis that they name, and no axis in doubt."""


@cache
def rubric() -> dict[str, Any]:
    """Return the axes with their anchors, and the table of recommendations."""
    return dict(yaml.safe_load((Path(__file__).parent / "rubric.yaml").read_text(encoding="utf-8")))


@dataclass(frozen=True)
class AxisMark:
    """The mark of one axis."""

    axis: str
    evidence: tuple[Evidence, ...]
    own: int | None
    """The candidate's own rating."""

    @property
    def mean(self) -> float | None:
        """Return the weighted mean of the evidence; None if there is too little."""
        if sum(max(e.weight, 1.0) for e in self.evidence) < LEAST:
            return None
        return sum(e.value * e.weight for e in self.evidence) / sum(e.weight for e in self.evidence)

    @property
    def value(self) -> int | None:
        """Return 1 to 5, or None for not observed. Halves are rounded down: no false praise."""
        return None if self.mean is None else max(1, int(self.mean + 0.499))

    @property
    def is_in_doubt(self) -> bool:
        """Return whether it has no mark, but an observation that went badly."""
        return self.mean is None and any(e.value < DOUBTFUL for e in self.evidence)


@dataclass(frozen=True)
class Assessment:
    """The marks of a session."""

    level: str
    marks: tuple[AxisMark, ...]
    recommendation: str
    reason: str
    """Axes that the recommendation rests on, and what a better one needs."""
    strengths: tuple[Asked, ...]
    gaps: tuple[Asked, ...]
    """At most three steps each, the strongest and the weakest."""

    def mark(self, axis: str) -> AxisMark:
        return self.marks[AXES.index(axis)]

    @property
    def overall(self) -> float | None:
        """Return the mean of the observed axes, to compare sessions; no mark."""
        means = [mark.mean for mark in self.marks if mark.mean is not None]
        return sum(means) / len(means) if means else None


def assess(talk: Talk) -> Assessment:
    """Return the marks of a session, whether it is over or not."""
    marks = tuple(
        AxisMark(axis, tuple(e for e in talk.evidence if e.axis == axis), talk.ratings.get(axis))
        for axis in AXES
    )
    judged = [asked for asked in talk.asked if asked.value is not None and "/" in asked.key]
    judged.sort(key=lambda asked: asked.value or 0.0)
    found = (
        talk.spec.level,
        {mark.axis: mark.value for mark in marks},
        [m.axis for m in marks if m.is_in_doubt],
    )
    return Assessment(
        talk.spec.level,
        marks,
        recommend(*found),
        reason(*found),
        tuple(
            asked
            for asked in reversed(judged)
            if (asked.value or 0) >= STRONG and not _is_luck(asked, judged)
        )[:3],
        tuple(asked for asked in judged if (asked.value or 0) < WEAK)[:3],
    )


def _is_luck(asked: Asked, judged: Sequence[Asked]) -> bool:
    """Return whether a right option proves little: at most half of the session's options were right, or the
    candidate was not sure of it."""
    options = [each for each in judged if _is_option(each)]
    right = sum((each.value or 0) >= STRONG for each in options)
    return _is_option(asked) and (2 * right <= len(options) or (asked.confidence or 100) <= UNSURE)


def _is_option(asked: Asked) -> bool:
    return asked.form == "reverse" or set(asked.replies.get("replies", ())) == {"choice"}


def recommend(level: str, values: Mapping[str, int | None], doubtful: Sequence[str] = ()) -> str:
    """Return the best recommendation whose minima hold.

    An axis that was not observed does not count against the candidate, but it earns no praise: the best two
    recommendations need a mark on each axis that they name, and none of the axes `doubtful`. Without correctness and
    one more axis there is no recommendation."""
    seen = {axis: value for axis, value in values.items() if value is not None}
    if "correctness" not in seen or len(seen) < 2:
        return "too little observed"
    for name, minima in rubric()["recommendations"][level].items():
        needed = {axis: least for axis, least in minima.items() if axis != "every"}
        if name in PRAISE and (doubtful or not needed.keys() <= seen.keys()):
            continue
        if all(seen.get(axis, least) >= least for axis, least in needed.items()) and all(
            value >= minima.get("every", 1) for value in seen.values()
        ):
            return str(name)
    return "strong no"


def reason(level: str, values: Mapping[str, int | None], doubtful: Sequence[str] = ()) -> str:
    """Return how sure the recommendation is, and what was missing to the next better one: marks too low, or axes that
    were too little observed."""
    unseen = [axis for axis in AXES if values.get(axis) is None]
    named = titles()
    parts = [f"it rests on {len(AXES) - len(unseen)} of {len(AXES)} axes"]
    got = recommend(level, values, doubtful)
    names = [*rubric()["recommendations"][level], "strong no"]
    if got in names[1:]:
        better = names[names.index(got) - 1]
        minima = rubric()["recommendations"][level][better]
        needed = {axis: minima.get(axis, minima.get("every", 1)) for axis in AXES}
        low = [
            f"{named[axis].lower()} {least} ({values[axis]})"
            for axis, least in needed.items()
            if (values.get(axis) or least) < least
        ]
        wanted = [axis for axis in minima if axis in unseen] if better in PRAISE else []
        missing = dict.fromkeys([*wanted, *(doubtful if better in PRAISE else ())])
        if low:
            parts.append(f'"{better}" needs {", ".join(low)}')
        if missing:
            parts.append(
                f'"{better}" needs more observations of {join_and([named[axis].lower() for axis in missing])}'
            )
    elif got not in names and unseen:
        parts.append(f"too little was observed of {join_and([named[axis].lower() for axis in unseen])}")
    return "; ".join(parts)


def anchor(axis: str, value: int) -> str:
    """Return the anchor that describes a mark: that of 1, 3 or 5, or of both neighbours."""
    anchors = rubric()["axes"][axis]["anchors"]
    if value in anchors:
        return str(anchors[value])
    return f"Between: {anchors[value - 1]} And: {anchors[value + 1]}"


def titles() -> dict[str, str]:
    return {axis: rubric()["axes"][axis]["title"] for axis in AXES}


def trend(assessments: Sequence[Assessment]) -> dict[str, list[int | None]]:
    """Return the marks of sessions in their order, by axis."""
    return {axis: [each.mark(axis).value for each in assessments] for axis in AXES}
