"""Make the report of a session from its conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from interview.drills.post_mortem import post_mortem
from interview.mock import prose
from interview.mock.assessment import STRONG, WEAK, Assessment, anchor, assess, supported, titles
from interview.mock.case import Case
from interview.mock.drawn import Drawn
from interview.mock.evidence import SURE, value_of
from interview.mock.report.judging import Verdicts, axis_values
from interview.mock.report.model import AxisRow, PointRow, Report, StepRow, load
from interview.mock.scenario import AXES, STAGE_NAMES, Step
from interview.mock.session import Saved, Session, SessionError
from interview.mock.talk import Asked, Talk
from prep_common.typed_value import value_text
from quizzes.free_text.sentences import closest

REASONS = {
    "contradicted": "your answer seemed to say the opposite of this: ",
    "missing": "your answer did not seem to make this point: ",
    "claimed": "this point needs more than words: ",
    "no_number": "your answer had no number",
    "sure": "you were sure, and wrong",
    "missed": "the answer before was wrong",
    "extension": "the answer before was right",
}
TREND = 10
"""Sessions that the trend shows."""


def make(session: Session, past: Sequence[Saved] = (), *, judged: Verdicts | None = None) -> Report:
    """Return the report. past: all sessions, the newest first, for the trend. judged: marks of a judge by step."""
    talk, spec = session.talk, session.spec
    assessment = assess(talk)
    drawn = {scenario.scenario.id: scenario for scenario in session.scenarios}
    questions = [asked for asked in talk.asked if _is_question(asked)]
    steps = [_step(asked, drawn, talk, judged or {}) for asked in questions]
    number = {asked.key: place for place, asked in enumerate(questions, 1)}
    gaps = [_gap(asked, talk, drawn) for asked in assessment.gaps]
    return Report(
        id=spec.id,
        title=", ".join(scenario.scenario.title for scenario in session.scenarios),
        role=spec.role,
        level=spec.level,
        minutes=spec.minutes,
        minutes_used=round(talk.elapsed / 60, 1),
        started=spec.started,
        finished=session.is_over,
        recommendation=assessment.recommendation if session.is_over else "the session is not over",
        reason=assessment.reason if session.is_over else "",
        axes=_axes(assessment, talk, judged or {}, number),
        steps=steps,
        strengths=[_title(asked.key, drawn, asked.say) for asked in assessment.strengths],
        gaps=gaps,
        calibration=_calibration(talk),
        unreached=[_title(key, drawn) for key in dict.fromkeys(talk.unreached)],
        cards=cards(talk, drawn),
        next_session=_next(assessment, gaps, spec.minutes),
        trend=_trend(assessment, past, spec.id),
        pauses=sum(note["note"] == "pause" for note in session.notes),
        drawings=sum(note["note"] == "drawing" for note in session.notes),
    )


def cards(talk: Talk, drawn: Mapping[str, Drawn]) -> list[str]:
    """Return the questions of the bank that missed steps name."""
    from quizzes.question_bank import load_bank

    bank = load_bank()
    pieces = supported(talk)
    missed = [asked for asked in talk.asked if (value_of(asked.key, pieces) or WEAK) < WEAK]
    names = [name for asked in missed for name in _learn(asked, drawn) if name in bank]
    return list(dict.fromkeys(names))


def _is_question(asked: Asked) -> bool:
    return asked.stage not in ("open", "self")


def _axes(assessment: Assessment, talk: Talk, judged: Verdicts, number: Mapping[str, int]) -> list[AxisRow]:
    by_judge = axis_values(talk, judged)
    named = titles()
    return [
        AxisRow(
            mark.axis,
            named[mark.axis],
            mark.value,
            mark.own,
            by_judge.get(mark.axis),
            len(mark.evidence),
            anchor(mark.axis, mark.value) if mark.value is not None else "",
            [
                f"{piece.value:.1f}, "
                + (f"question {number[piece.step]}" if piece.step in number else "the whole session")
                + f": {piece.why}"
                for piece in mark.evidence
            ],
        )
        for mark in assessment.marks
    ]


def _step(asked: Asked, drawn: Mapping[str, Drawn], talk: Talk, judged: Verdicts) -> StepRow:
    scenario, _, name = asked.key.partition("/")
    step = drawn[scenario].scenario.step(name) if scenario in drawn else None
    points, pieces = [], supported(talk)
    if step is not None:
        verdicts = judged.get(asked.key, {})
        text = asked.replies.get("text", "")
        doubts = prose.doubts(text, drawn[scenario].key_points(step)) if text else {}
        for point in drawn[scenario].key_points(step):
            probes = asked.probes.get(point.id)
            near = closest(point, text)
            points.append(
                PointRow(
                    point.say,
                    asked.marks.get(point.id, ""),
                    all(probes) if probes else None,
                    verdicts.get(point.id, ""),
                    near.sentence if near else "",
                    doubts.get(point.id, "") if asked.marks.get(point.id) in ("hit", "partial") else "",
                )
            )
    return StepRow(
        key=asked.key,
        stage=asked.stage,
        asked=asked.say,
        why=_why(asked, drawn),
        minutes=asked.minutes,
        seconds=round(asked.seconds, 1),
        answer=_answer(asked),
        clarified=[{"asked": question["asked"], "told": question["told"]} for question in asked.clarified],
        points=points,
        rows=[list(row) for row in asked.rows],
        ran=_command(asked),
        explain=asked.explain,
        five=_five(step, drawn.get(scenario)),
        evidence=[
            f"{titles()[e.axis].lower()} {e.value:.1f}: {e.why}" for e in pieces if e.step == asked.key
        ],
        value=value_of(asked.key, pieces),
        learn=_learn(asked, drawn),
        post_mortem=post_mortem(asked.replies["events"]) if "events" in asked.replies else "",
    )


def _five(step: Step | None, drawn: Drawn | None) -> str:
    """Return an answer that would score 5."""
    if step is None or drawn is None:
        return ""
    return Case.of(step).model_answer if step.incident is not None else drawn.text(step.five)


def _why(asked: Asked, drawn: Mapping[str, Drawn]) -> str:
    """Return in words what brought a follow-up."""
    kind, _, point = asked.why.partition(":")
    words = REASONS.get(kind, "")
    if not point:
        return words
    scenario, _, name = asked.key.partition("/")
    before = drawn[scenario].scenario.step(drawn[scenario].scenario.step(name).after or "")
    return words + next(
        keypoint.say for keypoint in drawn[scenario].key_points(before) if keypoint.id == point
    )


def _answer(asked: Asked) -> str:
    """Return what was answered in words."""
    replies = asked.replies
    if asked.passed:
        return "(passed)"
    if "text" in replies:
        return str(replies["text"])
    if "source" in replies:
        return str(replies["source"])
    given = {**replies.get("values", {}), **replies.get("replies", {})}
    if given:
        sure = f"; {asked.confidence} % sure" if asked.confidence else ""
        is_alone = sum(not name.endswith(".interval") for name in given) == 1
        return ", ".join(_in_words(name, value, is_alone) for name, value in given.items()) + sure
    if "drill" in replies:
        parts = [f"{name}: {', '.join(replies[name]) or 'none'}" for name in ("looks", "evidence", "fixes")]
        return f"{replies['cause']}, {asked.confidence} % sure; {'; '.join(parts)}"
    named = [name for reply in replies.values() for name in (reply if isinstance(reply, list) else [reply])]
    return ", ".join(map(str, named))


def _in_words(name: str, value: Any, is_alone: bool) -> str:
    if name == "choice":
        return f"option {value}"
    if name.endswith(".interval"):
        return f"interval {value}"
    return str(value) if is_alone else f"{name.replace('_', ' ')} {value}"


def _command(asked: Asked) -> str:
    if "drill" in asked.replies:
        return f"prep drill start {asked.replies['drill']}"
    if "name" not in asked.run:
        return ""
    args = " ".join(
        f"--set {quote(f'{name}={value_text(value)}')}" for name, value in asked.run["args"].items()
    )
    return f"prep run {asked.run['name']} {args}".strip()


def _learn(asked: Asked, drawn: Mapping[str, Drawn]) -> list[str]:
    scenario, _, name = asked.key.partition("/")
    if scenario == "warm":
        return [name]
    return list(drawn[scenario].scenario.step(name).learn) if scenario in drawn else []


def _gap(asked: Asked, talk: Talk, drawn: Mapping[str, Drawn]) -> dict[str, Any]:
    pieces = [piece for piece in supported(talk) if piece.step == asked.key]
    weakest = min(pieces, key=lambda piece: piece.value)
    return {"step": _title(asked.key, drawn, asked.say), "why": weakest.why, "learn": _learn(asked, drawn)}


def _title(key: str, drawn: Mapping[str, Drawn], said: str = "") -> str:
    """Return a step in words: its stage and the beginning of its question. said: the question, if it was asked."""
    scenario, _, name = key.partition("/")
    stage = "warm"
    if scenario in drawn:
        step = drawn[scenario].scenario.step(name)
        stage, said = step.stage, drawn[scenario].wording(step)
    first = (said.strip().splitlines() or [name])[0]
    return f"{STAGE_NAMES[stage]}: {first if len(first) <= 110 else first[:107].rsplit(' ', 1)[0] + ' …'}"


def _calibration(talk: Talk) -> dict[str, Any]:
    """Return how many intervals held, and how often the candidate was sure and wrong."""
    held = [part for asked in talk.asked for part in asked.intervals]
    graded = [
        asked for asked in talk.asked if (asked.confidence or 0) >= SURE and asked.all_right is not None
    ]
    sure = [asked.all_right if asked.cause_right is None else asked.cause_right for asked in graded]
    return {
        "intervals": len(held),
        "held": sum(held),
        "boundless": sum(asked.boundless for asked in talk.asked),
        "sure": len(sure),
        "sure_and_wrong": sum(not is_right for is_right in sure),
    }


def _next(assessment: Assessment, gaps: Sequence[Mapping[str, Any]], minutes: int) -> str:
    seen = [mark for mark in assessment.marks if mark.mean is not None]
    if not seen:
        return "a session of 20 minutes that you finish"
    weakest = min(seen, key=lambda mark: mark.mean or 0.0)
    if (weakest.mean or 0.0) >= STRONG:  # nothing is weak: look at what was not observed
        weakest = next((mark for mark in assessment.marks if mark.mean is None), weakest)
    links = [name for gap in gaps for name in gap["learn"]]
    before = f"first {', '.join(dict.fromkeys(links[:3]))}; then " if links else ""
    is_ready = min(mark.mean or 0.0 for mark in seen) >= 3
    longer = {20: 45, 45: 60, 60: 60}.get(minutes, 45) if is_ready else minutes
    return f"{before}{longer} minutes, with an eye on {titles()[weakest.axis].lower()}"


def _trend(assessment: Assessment, past: Sequence[Saved], own_id: str) -> dict[str, list[int | None]]:
    """Return the marks of finished sessions until this one. Sessions that cannot be read any more are left out."""
    earlier: list[Mapping[str, int | None]] = []
    for saved in past:
        if saved.spec.id >= own_id or not saved.is_over or len(earlier) >= TREND - 1:
            continue
        try:
            report = load(saved.spec.id)
            earlier.append(
                {row.axis: row.machine for row in report.axes}
                if report is not None
                else {m.axis: m.value for m in assess(Session.replay(saved.spec.id).talk).marks}
            )
        except SessionError:
            continue
    rows = [*reversed(earlier), {mark.axis: mark.value for mark in assessment.marks}]
    return {axis: [row.get(axis) for row in rows] for axis in AXES}
