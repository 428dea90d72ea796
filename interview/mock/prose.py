"""Evidence from prose: its probes, its length, its clarifying questions, and the candidate's own marks.

No code here understands an answer (`quizzes/free_text`), so the own marks count at 40 %, only beside probes, and only
for points that a sentence affirms (`doubts`). Prose that says nothing (`substance.py`, `stance.py`) earns nothing,
whatever its probes say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from interview.mock.denying import affirmed_points, denied_points, is_denial, misled_points
from interview.mock.evidence import PROSE_WEIGHT, Evidence
from interview.mock.stance import affirmed
from interview.mock.substance import (
    LEAST_SAID,
    SHORT,
    is_echo,
    is_mostly_filler,
    is_scrambled,
    makes_a_point,
    once,
    without_filler,
)
from prep_common.text import counted
from quizzes.free_text.lints import is_salad
from quizzes.free_text.scoring import FreeGraded, Mark, score
from quizzes.free_text.sentences import sentences
from quizzes.question import KeyPoint

DENIED = "it denies most of what it says"
OPEN = "it denies, takes back, asks or leaves open most of what it says"
OPPOSITE = "it says the opposite of most points that it comes near"
FILLER = "most of it could answer any question"
REPEATED = "it says one sentence again and again"
UNMADE = "it comes near less than half of the points that it is said to make"
VOID = (DENIED, OPEN, OPPOSITE, REPEATED)
"""Faults of prose that makes no point, however near to one its sentences are."""
TURNED = "your answer denies this point, as it reads"
FAR = "no sentence of your answer comes near this point"
"""Reasons for which an own mark does not count."""
NAMED = 2.0
"""Most that an answer earns on its points if it names one of them but explains nothing."""
UNPROVEN = 3.0
"""Most that the form of an explanation earns if most of its follow-ups went wrong; NAMED if it is near no key point."""


def doubts(text: str, points: Sequence[KeyPoint]) -> dict[str, str]:
    """Return why a hit on a key point would not count, by point: only points that the answer does not make."""
    turned = denied_points(text, points) | misled_points(text, points)
    made = affirmed_points(text, points)
    return {
        point.id: TURNED if point.id in turned else FAR
        for point in points
        if point.id in turned or point.id not in made
    }


@dataclass(frozen=True)
class Substance:
    """The substance of an answer in prose."""

    own: str
    """Sentences that it affirms."""
    left: int
    """Their words without repetitions and filler."""
    graded: FreeGraded
    makes_a_point: bool
    nothing: str
    """Reason for which it explains nothing, "" if it may explain something."""
    marked: str
    """The own marks in words, with those that do not count."""


def substance(
    text: str,
    points: Sequence[KeyPoint],
    marks: Mapping[str, Mark],
    probes: Mapping[str, Sequence[bool]],
    said: str,
) -> Substance:
    """Return what an answer says of the key points. said: what the interviewer told before."""
    own, why_not = affirmed(text), doubts(text, points)
    claimed = {point for point, mark in marks.items() if mark in ("hit", "partial")}
    turned, unmade = ({point for point in claimed if why_not.get(point) == why} for why in (TURNED, FAR))
    counted_marks: dict[str, Mark] = {
        point: "contradicted" if point in turned else "miss" if point in unmade else mark
        for point, mark in marks.items()
    }
    graded = score(points, counted_marks, probes, answer=own)
    left = len(without_filler(own, points, said).split())
    nothing = _says_nothing(text, own, points, said, graded, left) or _contradicts(
        graded, claimed, len(unmade)
    )
    return Substance(
        own,
        left,
        graded,
        nothing not in VOID and makes_a_point(own, points, said),
        nothing,
        f"own marks {_marked(marks)}" + _uncounted(len(turned), len(unmade)),
    )


def of_prose(
    text: str,
    points: Sequence[KeyPoint],
    marks: Mapping[str, Mark],
    probes: Mapping[str, Sequence[bool]],
    axes: Sequence[str],
    step: str,
    *,
    clarified: int,
    lo: int,
    hi: int,
    seconds: float,
    minutes: float,
    said: str = "",
) -> list[Evidence]:
    """Return the evidence of prose. marks, probes: by key point. clarified: facts that questions brought. said: what
    the interviewer told before."""
    read = substance(text, points, marks, probes, said)
    graded, left, is_near, nothing = read.graded, read.left, read.makes_a_point, read.nothing
    most_explained = 5.0 if not nothing else NAMED if is_near else 1.0
    pieces = []
    for axis in axes:
        if axis == "communication":
            continue
        weight = PROSE_WEIGHT if axis == "mechanism" else 1.0
        if graded.grader == "probe" and most_explained > 1:
            right = sum(is_right for probe in probes.values() for is_right in probe)
            asked = sum(len(probe) for probe in probes.values())
            why = f"{right} of {asked} follow-ups right, {read.marked}{nothing and '; '}{nothing}"
            value = min(most_explained, 1.0 + 4.0 * graded.share)
            pieces.append(Evidence(axis, value, why, step, weight))
        elif nothing:
            pieces.append(Evidence(axis, 1.0, nothing, step, weight))
    if "communication" in axes:
        value, why = _told(text, left, clarified, lo, hi, seconds, minutes)
        most, limit = _most_told(read.own, said, graded, probes, is_near, nothing)
        if value > most:
            value, why = most, f"{why}, but {limit}"
        pieces.append(Evidence("communication", value, why, step))
    return pieces


def _uncounted(turned: int, unmade: int) -> str:
    """Return which own marks do not count, in words."""
    parts = [f"the answer denies {turned} of them"] * bool(turned)
    parts += [f"no sentence is near {unmade} of them"] * bool(unmade)
    return f", but {' and '.join(parts)}" if parts else ""


def _contradicts(graded: FreeGraded, claimed: Set[str], unmade: int) -> str:
    """Return why the own marks prove nothing: sentences that deny the points, or none near them."""
    turned = sum(point.mark == "contradicted" and point.id in claimed for point in graded.points)
    if 2 * turned > len(claimed) - unmade:
        return OPPOSITE
    return UNMADE if 2 * unmade > len(claimed) else ""


def _says_nothing(
    text: str, own: str, points: Sequence[KeyPoint], said: str, graded: FreeGraded, left: int
) -> str:
    """Return why prose explains nothing, "" if it may explain something. own: what it affirms. left: words without
    filler."""
    if len(text.split()) >= SHORT and 2 * len(own.split()) < len(text.split()) and len(own.split()) < SHORT:
        return OPEN
    if _is_one_sentence(own):
        return REPEATED
    text, count = own, len(text.split())
    if len(once(text).split()) < SHORT or left < LEAST_SAID:
        filler = f", {left} without repetitions and filler" if left < count else ""
        return f"{counted(count, 'word')}{filler}: nothing explained"
    if is_echo(text, said):
        return "it repeats the question"
    if is_mostly_filler(text, left):
        return FILLER
    if is_salad(text) or is_scrambled(text):
        return "a list of terms, not sentences"
    if is_denial(text, points):
        return DENIED
    return "" if graded.is_on_topic else "it shares few words with the key points"


def _is_one_sentence(text: str) -> bool:
    return len(sentences(text)) > 2 and len(sentences(once(text))) == 1


def _told(
    text: str, left: int, clarified: int, lo: int, hi: int, seconds: float, minutes: float
) -> tuple[float, str]:
    count, kept = len(text.split()), len(once(text).split())
    if not any(letter.isalnum() for letter in text):
        return 1.0, "silence"
    if is_salad(text) or is_scrambled(text):
        return 1.0, f"{counted(count, 'word')}, a list of terms, not sentences"
    value, reasons = 3.0, [counted(count, "word")]
    if kept < SHORT or left < LEAST_SAID:
        value, reasons = 2.0, [f"only {counted(min(kept, left), 'word')} about the question"]
    elif is_mostly_filler(text, left):
        value, reasons = 2.0, [f"only {left} of {counted(count, 'word')} are about the question"]
    elif count > 1.6 * hi:
        value -= 1.0
        reasons.append(f"{lo} to {hi} are usual")
    elif kept >= lo and len(sentences(text)) >= 3 and any(letter.isdigit() for letter in text):
        value += 1.0
        reasons.append("in sentences with figures, of the usual length")
    if clarified:
        value += 1.0
        reasons.append(f"asked for {clarified} facts first" if clarified > 1 else "asked for a fact first")
    if seconds > 72 * minutes:
        value -= 1.5
        reasons.append(f"{seconds / 60:.0f} min of {minutes:g}")
    return max(1.0, min(5.0, value)), ", ".join(reasons)


def _most_told(
    text: str,
    said: str,
    graded: FreeGraded,
    probes: Mapping[str, Sequence[bool]],
    is_near: bool,
    nothing: str,
) -> tuple[float, str]:
    """Return the most that prose can earn for its form, and why: fluent sentences may say nothing. text: what it
    affirms. is_near: whether it comes near a key point. nothing: why it explains nothing."""
    if is_echo(text, said):
        return 1.0, "it repeats the question"
    if len(once(text).split()) < SHORT <= len(text.split()) or nothing == REPEATED:
        return 1.0, REPEATED
    if nothing in (DENIED, OPEN, OPPOSITE, UNMADE):
        return NAMED, nothing
    if not graded.is_on_topic:
        return 2.0, "it shares few words with the key points"
    if not holds_up(probes):
        return UNPROVEN if is_near else NAMED, "most of its follow-ups went wrong"
    return 5.0, ""


def holds_up(probes: Mapping[str, Sequence[bool]]) -> bool:
    """Return whether at least half of the follow-ups on an explanation were right; True without any."""
    results = [is_right for probe in probes.values() for is_right in probe]
    return 2 * sum(results) >= len(results)


def _marked(marks: Mapping[str, Mark]) -> str:
    return f"{sum(mark == 'hit' for mark in marks.values())} of {len(marks)}"
