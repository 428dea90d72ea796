"""From evidence to marks: six axes from 1 to 5, a recommendation for the level, strengths and gaps.

An axis with fewer than two observations is "not observed", never a number. Machine evidence decides; the candidate's
own rating, and a judge's if one is configured, stand beside it and change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from interview.mock.evidence import UNSURE, Evidence, value_of
from interview.mock.scenario import AXES
from interview.mock.substance import LEAST_FOR_YES
from interview.mock.talk import Asked, Talk
from prep_common.text import join_and

LEAST = 2
"""Observations that an axis needs. An explanation with its probes counts as two."""
FAR_OFF = 2
"""Difference between own rating and mark that is called out."""
STRONG, WEAK = 4.0, 3.5
MOST_UNSEEN = 1
"""Axes without a mark that a recommendation of PRAISE may have."""
UNSUPPORTED = 2.0
"""Most that an option, a repair or a wrong number near the right one earns for a candidate who explained nothing and
got most numbers wrong."""
RIGHT = 5.0
DOUBTFUL = 3.0
"""Value of a single observation below which an axis without a mark is in doubt."""
PRAISE = ("strong yes", "yes")
"""Recommendations that need a mark on each axis that they name, no axis in doubt, at most one axis without a mark, and
an explanation that its follow-ups confirm."""


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
        if sum(e.observations for e in self.evidence) < LEAST:
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
    evidence = supported(talk)
    marks = tuple(
        AxisMark(axis, tuple(e for e in evidence if e.axis == axis), talk.ratings.get(axis)) for axis in AXES
    )
    worth = {asked.key: mean for asked in talk.asked if (mean := value_of(asked.key, evidence)) is not None}
    judged = [asked for asked in talk.asked if asked.key in worth and "/" in asked.key]
    judged.sort(key=lambda asked: worth[asked.key])
    values, lack = {mark.axis: mark.value for mark in marks}, lack_of(talk.asked)
    level, doubtful = talk.spec.level, [m.axis for m in marks if m.is_in_doubt]
    return Assessment(
        talk.spec.level,
        marks,
        recommend(level, values, doubtful, not lack),
        reason(level, values, doubtful, lack),
        tuple(
            asked
            for asked in reversed(judged)
            if worth[asked.key] >= STRONG and not _is_luck(asked, judged, worth)
        )[:3],
        tuple(asked for asked in judged if worth[asked.key] < WEAK)[:3],
    )


def lack_of(asked: Sequence[Asked]) -> str:
    """Return why no explanation can carry a "yes": the faults of the one that has fewest; "" if one can."""
    judged = [answer.lacks for answer in asked if answer.lacks is not None and answer.replies.get("text")]
    return join_and(min(judged, key=len)) if judged else "none was given"


def supported(talk: Talk) -> list[Evidence]:
    """Return the evidence, each at most UNSUPPORTED if nothing supports it: no explanation comes near a key point, and
    at most half of the numbers and programs are right. Right numbers, programs, designs and solved incidents count even
    then, because a guess rarely hits them: to solve an incident is to take the look that decides, and to name its
    figure, the cause and the repair."""
    prose = [asked for asked in talk.asked if asked.form == "prose"]
    if not prose or any(asked.makes_a_point for asked in prose):
        return list(talk.evidence)
    shown: dict[str, float] = {}
    for piece in talk.evidence:
        if piece.axis in ("correctness", "quantification") and piece.kind in ("number", "program"):
            shown[piece.step] = max(piece.value, shown.get(piece.step, 0.0))
    if 2 * sum(value >= STRONG for value in shown.values()) > len(shown):
        return list(talk.evidence)
    right = {asked.key for asked in talk.asked if asked.all_right}
    return [
        replace(piece, value=UNSUPPORTED, why=f"{piece.why}; a guess, as nothing was explained")
        if piece.axis != "communication"
        and piece.value > UNSUPPORTED
        and piece.kind not in ("program", "design", "incident")
        and (piece.kind == "option" or (piece.value < RIGHT and piece.step not in right))
        else piece
        for piece in talk.evidence
    ]


def _is_luck(asked: Asked, judged: Sequence[Asked], worth: Mapping[str, float]) -> bool:
    """Return whether a right option proves little: at most half of the session's options were right, or the
    candidate was not sure of it."""
    options = [option for option in judged if _is_option(option)]
    right = sum(worth[option.key] >= STRONG for option in options)
    return _is_option(asked) and (2 * right <= len(options) or (asked.confidence or 100) <= UNSURE)


def _is_option(asked: Asked) -> bool:
    return asked.form == "reverse" or set(asked.replies.get("replies", ())) == {"choice"}


def recommend(
    level: str, values: Mapping[str, int | None], doubtful: Sequence[str] = (), explained: bool = True
) -> str:
    """Return the best recommendation whose minima hold.

    An axis that was not observed does not count against the candidate, but it earns no praise: see PRAISE. Without
    correctness and one more axis there is no recommendation. explained: whether an explanation has substance."""
    seen = {axis: value for axis, value in values.items() if value is not None}
    if "correctness" not in seen or len(seen) < 2:
        return "too little observed"
    for name in rubric()["recommendations"][level]:
        if name in PRAISE and (not explained or _unseen(level, name, values, doubtful)):
            continue
        if not _too_low(level, name, values):
            return str(name)
    return "strong no"


def _too_low(level: str, name: str, values: Mapping[str, int | None]) -> dict[str, int]:
    """Return the axes whose marks are too low for a recommendation, with the marks that it needs."""
    minima = rubric()["recommendations"][level][name]
    needed = {axis: max(minima.get(axis, 1), minima.get("every", 1)) for axis in AXES}
    return {axis: least for axis, least in needed.items() if (values.get(axis) or least) < least}


def _unseen(level: str, name: str, values: Mapping[str, int | None], doubtful: Sequence[str]) -> list[str]:
    """Return the axes that were too little observed for a recommendation of PRAISE."""
    unseen = [axis for axis in AXES if values.get(axis) is None]
    if len(unseen) > MOST_UNSEEN:
        return unseen
    return [axis for axis in unseen if axis in rubric()["recommendations"][level][name] or axis in doubtful]


def reason(level: str, values: Mapping[str, int | None], doubtful: Sequence[str] = (), lack: str = "") -> str:
    """Return how sure the recommendation is, and what was missing to the next better one: marks too low, axes that
    were too little observed, an explanation. lack: see lack_of."""
    unseen = [axis for axis in AXES if values.get(axis) is None]
    parts = [f"it rests on {len(AXES) - len(unseen)} of {len(AXES)} axes"]
    got = recommend(level, values, doubtful, not lack)
    names = [*rubric()["recommendations"][level], "strong no"]
    if got in names[1:]:
        better = names[names.index(got) - 1]
        low = [
            f"{_named([axis])} {least} ({values[axis]})"
            for axis, least in _too_low(level, better, values).items()
        ]
        if low:
            parts.append(f'"{better}" needs {", ".join(low)}')
        if better in PRAISE:
            if lack:
                needs = (
                    f"an explanation of {LEAST_FOR_YES} words that makes a key point, with right follow-ups"
                )
                parts.append(f'"{better}" needs {needs}: {lack}')
            unseen = _unseen(level, better, values, doubtful)
    if unseen and (got not in names or got in names[1:]):
        best = recommend(level, {axis: values.get(axis) or 5 for axis in AXES}, (), not lack)
        could = f': with good marks there it would be "{best}"' if best != got else ""
        parts.append(f"too little was observed of {_named(unseen)}{could}")
    return "; ".join(parts)


def _named(axes: Sequence[str]) -> str:
    return join_and([titles()[axis].lower() for axis in axes])


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
    return {axis: [assessment.mark(axis).value for assessment in assessments] for axis in AXES}
