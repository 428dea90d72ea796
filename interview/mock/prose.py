"""Evidence from prose: its probes, its length, its clarifying questions, and the candidate's own marks.

No code here understands an answer (`quizzes/free_text`), so the own marks count at 40 %, and only beside probes. Prose
that says nothing (`substance.py`) earns nothing, whatever its probes say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from common.text import counted
from interview.mock.denying import denied_points, is_denial
from interview.mock.evidence import PROSE_WEIGHT, Evidence
from interview.mock.substance import (
    LEAST_SAID,
    SHORT,
    is_echo,
    is_mostly_filler,
    makes_a_point,
    once,
    without_filler,
)
from quizzes.free_text.lints import is_salad
from quizzes.free_text.scoring import FreeGraded, Mark, score
from quizzes.free_text.sentences import sentences
from quizzes.question import KeyPoint

DENIED = "it denies most of what it says"
NAMED = 2.0
"""Most that an answer earns on its points if it names one of them but explains nothing."""
UNPROVEN = 3.0
"""Most that the form of an explanation earns if most of its follow-ups went wrong; NAMED if it is near no key point."""


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
    denied = {point for point in denied_points(text, points) if marks.get(point) in ("hit", "partial")}
    graded = score(points, {**marks, **dict.fromkeys(denied, "contradicted")}, probes, answer=text)
    left = len(without_filler(text, points, said).split())
    nothing, is_near = _says_nothing(text, points, said, graded, left), makes_a_point(text, points, said)
    most_explained = 5.0 if not nothing else NAMED if is_near else 1.0
    own = f"own marks {_marked(marks)}" + (f", but the answer denies {len(denied)} of them" if denied else "")
    found = []
    for axis in axes:
        if axis == "communication":
            continue
        weight = PROSE_WEIGHT if axis == "mechanism" else 1.0
        if graded.grader == "probe" and most_explained > 1:
            right = sum(each for probe in probes.values() for each in probe)
            asked = sum(len(probe) for probe in probes.values())
            why = f"{right} of {asked} follow-ups right, {own}{nothing and '; '}{nothing}"
            value = min(most_explained, 1.0 + 4.0 * graded.share)
            found.append(Evidence(axis, value, why, step, weight))
        elif nothing:
            found.append(Evidence(axis, 1.0, nothing, step, weight))
    if "communication" in axes:
        value, why = _told(text, left, clarified, lo, hi, seconds, minutes)
        most, limit = _most_told(text, points, said, graded, probes, is_near)
        if value > most:
            value, why = most, f"{why}, but {limit}"
        found.append(Evidence("communication", value, why, step))
    return found


def _says_nothing(text: str, points: Sequence[KeyPoint], said: str, graded: FreeGraded, left: int) -> str:
    """Return why prose explains nothing, "" if it may explain something. left: words without filler."""
    count = len(text.split())
    if len(once(text).split()) < SHORT or left < LEAST_SAID:
        filler = f", {left} without repetitions and filler" if left < count else ""
        return f"{counted(count, 'word')}{filler}: nothing explained"
    if is_echo(text, said):
        return "it repeats the question"
    if is_salad(text):
        return "a list of terms, not sentences"
    if is_denial(text, points):
        return DENIED
    return "" if graded.is_on_topic else "it shares few words with the key points"


def _told(
    text: str, left: int, clarified: int, lo: int, hi: int, seconds: float, minutes: float
) -> tuple[float, str]:
    count, kept = len(text.split()), len(once(text).split())
    if not any(letter.isalnum() for letter in text):
        return 1.0, "silence"
    if is_salad(text):
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
    points: Sequence[KeyPoint],
    said: str,
    graded: FreeGraded,
    probes: Mapping[str, Sequence[bool]],
    is_near: bool,
) -> tuple[float, str]:
    """Return the most that prose can earn for its form, and why: fluent sentences may say nothing. is_near: whether it
    comes near a key point."""
    if is_echo(text, said):
        return 1.0, "it repeats the question"
    if len(once(text).split()) < SHORT <= len(text.split()):
        return 1.0, "it says one sentence again and again"
    if is_denial(text, points):
        return NAMED, DENIED
    if not graded.is_on_topic:
        return 2.0, "it shares few words with the key points"
    if not holds_up(probes):
        return UNPROVEN if is_near else NAMED, "most of its follow-ups went wrong"
    return 5.0, ""


def holds_up(probes: Mapping[str, Sequence[bool]]) -> bool:
    """Return whether at least half of the follow-ups on an explanation were right; True without any."""
    results = [each for probe in probes.values() for each in probe]
    return 2 * sum(results) >= len(results)


def _marked(marks: Mapping[str, Mark]) -> str:
    return f"{sum(mark == 'hit' for mark in marks.values())} of {len(marks)}"
