"""The state machine of a session: stages in their order, follow-ups by what was said, and the clock.

    open -> warm -> core, its marks and probes -> quantify -> experiment -> design -> curveball -> reverse -> self

`conduct` is a generator. The same spec and the same replies give the same turns, which is all that resuming needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from interview.mock.acting import code_step, design_step, reverse_step
from interview.mock.asking import ask_instance, ask_step
from interview.mock.drawn import Drawn
from interview.mock.evidence import SURE, Evidence, of_answers, of_pace
from interview.mock.explaining import explain_step, judge_prose, listen, mark_points
from interview.mock.incident import incident_step
from interview.mock.prose import holds_up
from interview.mock.scenario import AXES, Step, role_name
from interview.mock.taking_up import quotation, said_already
from interview.mock.talk import Asked, Conversation, LeftOut, Talk, warm_key
from interview.mock.turns import Continue, Rate
from quizzes.instance import Instance

FORMS = {
    "ask": ask_step,
    "experiment": ask_step,
    "prose": explain_step,
    "canvas": design_step,
    "incident": incident_step,
    "code": code_step,
    "reverse": reverse_step,
}
START = {"mid": 2.5, "senior": 3.5, "staff": 4.0}
"""Level -> difficulty of the first follow-ups."""
MOST_FOLLOW_UPS = {20: 2, 45: 3, 60: 3}
"""After one step, by the minutes of the session."""
SECOND_SCENARIO = ("core", "quantify", "experiment")
SHORT_SESSION = {"core": 1, "design": 1, "quantify": 1, "experiment": 2}
"""Stage -> number of steps in 20 minutes."""
OPENING = (
    "We have {minutes} minutes: {role}, level {level}. Think aloud, ask what you need to know, and give numbers with "
    "their units. When I ask for an interval, I want one that you would bet 80 % on. I run experiments; some of them "
    "with your own numbers."
)
LATE = "Your last answer took longer than planned."
TIME_LEFT = "We have time left, so let us come back to an earlier answer."
CONTRADICTED = "The run also contradicts your earlier answer on this point."
OVERTIME = 1.2
CLASSES = ("contradicted", "missing", "claimed", "no_number", "sure", "missed", "extension")
"""Reasons for a follow-up, the most urgent first. claimed: a point that must be made, and a probe that tests it."""


def conduct(talk: Talk, scenarios: list[Drawn], warm: Instance | None) -> Conversation:
    """Hold the session. scenarios: the first one in full; of a second one, SECOND_SCENARIO."""
    spec = talk.spec
    opening = talk.begin("open", None, "open", "", "", 2)
    say = OPENING.format(minutes=spec.minutes, role=role_name(spec.role), level=spec.level)
    heard = yield talk.turn(opening, "rules", say, Continue(), began=True)
    talk.hear(opening, heard)
    if warm is not None:
        asked = talk.begin(warm_key(warm.id), None, "warm", "ask", warm.prompt, warm.question.minutes)
        yield from ask_instance(talk, asked, warm, asked.say, ["correctness"])
    for number, drawn in enumerate(scenarios):
        brief = drawn.text(drawn.scenario.brief)
        talk.preface = "\n\n".join(text for text in (talk.preface, brief) if text)
        for step in line_of(drawn, spec.minutes, is_second=number > 0):
            if talk.elapsed + 60 * step.minutes > 66 * spec.minutes and _has_the_minimum(talk, step):
                talk.unreached.append(_key(drawn, step))
                continue
            yield from _ask(talk, drawn, step)
    if spec.comes_back:
        yield from _come_back(talk)
    for unmarked, step, prose in talk.unmarked:
        yield from mark_points(talk, unmarked, step, prose, is_late=True)
        judge_prose(talk, unmarked, step, prose)
    talk.evidence += _pace(talk)
    rating = talk.begin("self", None, "self", "rate", "", 2)
    end = "That's the time." if talk.elapsed > 54 * spec.minutes else "Those were my questions."
    say = f"{end} Before you see the report: how would you rate yourself, axis by axis?"
    heard = yield talk.turn(rating, "rate", say, Rate(AXES), began=True)
    talk.ratings = talk.hear(rating, heard)["ratings"]


def _pace(talk: Talk) -> list[Evidence]:
    """Return the evidence of the session as a whole."""
    steps = [asked for asked in talk.asked if "/" in asked.key]
    return of_pace(
        sum(asked.seconds > 60 * OVERTIME * asked.minutes for asked in steps),
        len(steps),
        explained=any(step.explains and holds_up(step.probes) for step in steps),
        asked=any(question["fact"] for asked in steps for question in asked.clarified),
    )


def line_of(drawn: Drawn, minutes: int, *, is_second: bool = False) -> Iterator[Step]:
    """Yield the steps of the main line that a session of this length has."""
    count: dict[str, int] = {}
    for step in drawn.scenario.main_line:
        count[step.stage] = count.get(step.stage, 0) + 1
        if minutes == 20 and count[step.stage] > SHORT_SESSION.get(step.stage, 0):
            if not (step.incident or step.code or step.canvas):  # what the scenario is about is always asked
                continue
        if is_second and step.stage not in SECOND_SCENARIO:
            continue
        yield step


def _has_the_minimum(talk: Talk, step: Step) -> bool:
    """Return whether the step can be left out for lack of time. A number, two experiments, and what the scenario is
    about (a design, an incident, a program) always find a place."""
    if step.canvas or step.incident or step.code:
        return False
    quantified = any(asked.stage == "quantify" for asked in talk.asked)
    runs = sum("name" in asked.run for asked in talk.asked)
    if step.stage == "quantify":
        return quantified
    return runs >= 2 or step.form not in ("experiment", "canvas", "incident", "reverse")


def _ask(talk: Talk, drawn: Drawn, step: Step, why: str = "", before: str = "") -> Conversation:
    """Ask one step, and the follow-ups that its answer calls for. before: words of the answer that it takes up."""
    key = _key(drawn, step)
    if talk.asked[-1].seconds > 60 * OVERTIME * talk.asked[-1].minutes:
        talk.preface = f"{LATE} {talk.preface}".strip()
    say = f"{before}\n\n{drawn.wording(step)}".strip()
    asked = talk.begin(key, step, step.stage, step.form, say, step.minutes)
    asked.why = why
    yield from FORMS[step.form](talk, drawn, step, asked)
    if step.form == "prose":
        listen(drawn, step, asked)
    for follow_up, reason in _chosen(talk, drawn, step, asked):
        yield from _follow_up(talk, LeftOut(drawn, step, asked, follow_up, reason))
    if step.form == "prose":  # after the probes, which the key points would give away
        if talk.spec.marks_late and any(
            left_out.asked is asked and left_out.is_probe for left_out in talk.left_out
        ):
            talk.unmarked.append((drawn, step, asked))
            return
        yield from mark_points(talk, drawn, step, asked)
        judge_prose(talk, drawn, step, asked)


def _follow_up(talk: Talk, left_out: LeftOut) -> Conversation:
    """Ask a follow-up, unless the answer says it already, and count it as a probe of its key points. It is none once
    these were shown, as in logs of earlier versions."""
    drawn, step, asked, follow_up, reason = left_out
    graded = said_already(drawn, asked, follow_up) if talk.spec.skips_said else None
    if graded is not None:
        talk.evidence += of_answers(graded, follow_up.axes, asked.key, rescued=False)
        result: bool | None = True
    else:
        yield from _ask(talk, drawn, follow_up, reason, quotation(drawn, step, asked, follow_up, reason))
        answered = talk.asked[-1]
        result = False if answered.passed else answered.all_right
        if answered.all_right is False and "result" in answered.run and reason.startswith("contradicted:"):
            talk.preface = f"{talk.preface} {CONTRADICTED}".strip()
    for point in step.keypoints:
        if follow_up.id in point.probes and result is not None and not asked.marks:
            asked.probes.setdefault(point.id, []).append(result)


def _come_back(talk: Talk) -> Conversation:
    """Ask follow-ups that were left out, as many as after one step and as long as they end in time. Those on the axis
    seen least come first."""
    for _ in range(_most_follow_ups(talk)):
        left = 60 * talk.spec.minutes - talk.elapsed
        seen = talk.observations()
        fit = [left_out for left_out in talk.left_out if 60 * left_out.follow_up.minutes <= left]
        if not fit:
            return
        chosen = min(fit, key=lambda left_out: min(seen[axis] for axis in left_out.follow_up.axes))
        talk.left_out.remove(chosen)
        talk.unreached.remove(_key(chosen.drawn, chosen.follow_up))
        talk.preface = f"{talk.preface}\n\n{TIME_LEFT}".strip()
        yield from _follow_up(talk, chosen)


def _most_follow_ups(talk: Talk) -> int:
    return MOST_FOLLOW_UPS.get(talk.spec.minutes, 3)


def _chosen(talk: Talk, drawn: Drawn, step: Step, asked: Asked) -> list[tuple[Step, str]]:
    """Return the follow-ups, the most urgent first; within a class those on the axis seen least, then those whose
    difficulty is nearest to what the candidate has shown."""
    if step.after is not None:
        return []
    seen, level = talk.observations(), _estimate(talk)
    ranked = []
    for follow_up in drawn.scenario.follow_ups(step.id):
        reason = _reason(step, follow_up, asked)
        if reason:
            axis = min(seen[name] for name in follow_up.axes)
            far = abs(follow_up.difficulty - level)
            ranked.append(
                (CLASSES.index(reason.partition(":")[0]), axis, far, follow_up.id, follow_up, reason)
            )
    ranked.sort(key=lambda entry: entry[:4])
    most = _most_follow_ups(talk)
    talk.left_out += [LeftOut(drawn, step, asked, entry[4], entry[5]) for entry in ranked[most:]]
    talk.unreached += [_key(drawn, entry[4]) for entry in ranked[most:]]
    return [(entry[4], entry[5]) for entry in ranked[:most]]


def _reason(step: Step, follow_up: Step, asked: Asked) -> str:
    """Return why to ask a follow-up, "" for no reason."""
    assert follow_up.when is not None
    kind, _, point = follow_up.when.partition(":")
    if kind in ("missing", "contradicted"):
        heard = asked.heard.get(point, "missing")
        if heard == "contradicted" or heard == kind:
            return f"{heard}:{point}"
        must = any(keypoint.must and follow_up.id in keypoint.probes for keypoint in step.keypoints)
        return f"claimed:{point}" if must and heard == "claimed" else ""
    sure = (asked.confidence or 0) >= SURE or not all(asked.intervals)
    holds = {
        "no_number": bool(asked.replies.get("text")) and not re.search(r"\d", asked.replies["text"]),
        "sure": asked.all_right is False and sure,
        "missed": asked.all_right is False or asked.passed,
        "extension": asked.all_right is True
        or step.form == "prose"
        and all(asked.heard.get(keypoint.id) == "claimed" for keypoint in step.keypoints if keypoint.must),
    }
    return kind if holds[kind] else ""


def _estimate(talk: Talk) -> float:
    """Return the difficulty that suits the candidate: half a step up or down with each graded answer."""
    graded = [asked.all_right for asked in talk.asked if asked.all_right is not None]
    return START.get(talk.spec.level, 3.0) + sum(0.5 if right else -0.5 for right in graded)


def _key(drawn: Drawn, step: Step) -> str:
    return f"{drawn.scenario.id}/{step.id}"
