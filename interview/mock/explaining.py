"""Prose: clarifying questions, the answer, and the candidate's own marks of its key points."""

from __future__ import annotations

from dataclasses import replace

from interview.mock import prose
from interview.mock.drawn import Drawn
from interview.mock.evidence import RESCUED
from interview.mock.scenario import Step
from interview.mock.substance import LEAST_FOR_YES, explains
from interview.mock.talk import Asked, Conversation, Talk
from interview.mock.turns import Mark, Prose
from prep_common.text import counted
from quizzes.free_text.lints import says_opposite
from quizzes.free_text.sentences import closest, sentences

UNKNOWN = "I leave that to you. State your assumption and go on."
LATE = "Before we end, back to this question:"
MARK = "this is what I listened for in your answer. Did you say it?"
LENGTHS = {"core": (60, 200), "design": (60, 250)}
NEAR = 0.25
"""Share of words from which a sentence may make a point."""


def explain_step(talk: Talk, drawn: Drawn, step: Step, asked: Asked) -> Conversation:
    """Ask for prose. Its marks and probes follow (`conduct.follow_up`), then its evidence (`judge_prose`)."""
    lo, hi = LENGTHS.get(step.stage, (40, 150))
    say, name, tries = asked.say, "answer", 0
    while True:
        heard = yield talk.turn(asked, f"{name}{tries or ''}", say, Prose(lo, hi), began=tries == 0)
        reply = talk.hear(asked, heard)
        tries += 1
        if "clarify" in reply:
            fact = drawn.clarify(reply["clarify"])
            say = drawn.text(fact.answer) if fact else UNKNOWN
            told = {"asked": reply["clarify"], "told": say if fact else "", "fact": fact.id if fact else ""}
            asked.clarified.append(told)
            continue
        text = reply["text"].strip()
        if not text and step.rescue and not asked.rescued:
            asked.rescued, say = True, drawn.text(step.rescue)
            continue
        asked.replies["text"] = text
        asked.passed = not text
        return


def listen(drawn: Drawn, step: Step, asked: Asked) -> None:
    """Note which key points seem to be missing or reversed: what the interviewer asks next depends on it."""
    text = asked.replies["text"]
    for point in drawn.key_points(step):
        near = closest(point, text)
        if any(says_opposite(sentence, point) for sentence in sentences(text)):
            asked.heard[point.id] = "contradicted"
        else:
            is_near = near is not None and near.overlap >= NEAR
            asked.heard[point.id] = "claimed" if is_near else "missing"


def mark_points(talk: Talk, drawn: Drawn, step: Step, asked: Asked, *, is_late: bool = False) -> Conversation:
    """Ask which key points the answer made. Marking is not part of the interview's time. is_late: other questions
    came between."""
    text = asked.replies["text"]
    if not text:
        asked.marks = {point.id: "miss" for point in step.keypoints}
        return
    doubts = prose.doubts(text, drawn.key_points(step))
    for number, point in enumerate(drawn.key_points(step), 1):
        near = closest(point, text)
        say = (
            ""
            if number > 1
            else f"{LATE}\n\n{asked.say}\n\n{MARK}"
            if is_late
            else f"Before we go on: {MARK}"
        )
        want = Mark(
            point,
            near.sentence if near else "",
            doubts.get(point.id, ""),
            text if is_late and number == 1 else "",
        )
        heard = yield talk.turn(asked, f"mark.{point.id}", say, want)
        asked.marks[point.id] = heard.reply["mark"]


def said_before(drawn: Drawn, asked: Asked) -> str:
    """Return the interviewer's words before an answer: title, brief, question, and facts that were asked for."""
    facts = " ".join(question["told"] for question in asked.clarified)
    return f"{drawn.scenario.title} {drawn.text(drawn.scenario.brief)} {asked.say} {facts}"


def lacks(count: int, of: str, *more: str) -> tuple[str, ...]:
    """Return what an explanation of `count` words lacks for a "yes". of: which words. more: other faults, or ""."""
    short = "" if count >= LEAST_FOR_YES else f"it had {counted(count, 'word')}{of}"
    return tuple(fault for fault in (short, *more) if fault)


def judge_prose(talk: Talk, drawn: Drawn, step: Step, asked: Asked) -> None:
    """Keep the evidence of prose, once its probes are answered."""
    lo, hi = LENGTHS.get(step.stage, (40, 150))
    text, points = asked.replies["text"], drawn.key_points(step)
    said = said_before(drawn, asked)
    read = prose.substance(text, points, asked.marks, asked.probes, said)  # type: ignore[arg-type]
    is_void = read.nothing in prose.VOID
    asked.makes_a_point, asked.explains = (
        read.makes_a_point,
        not is_void and explains(read.own, read.left, points),
    )
    asked.lacks = lacks(
        read.left,
        " without repetitions and filler",
        "" if asked.makes_a_point else read.nothing if is_void else "it came near no key point",
        "" if prose.holds_up(asked.probes) else "most of its follow-ups went wrong",
    )
    pieces = prose.of_prose(
        text,
        points,
        asked.marks,  # type: ignore[arg-type]
        asked.probes,
        list(step.axes),
        asked.key,
        clarified=len({question["fact"] for question in asked.clarified if question["fact"]}),
        lo=lo,
        hi=hi,
        seconds=asked.seconds,
        minutes=asked.minutes,
        said=said,
    )
    if asked.rescued:
        pieces = [replace(piece, value=min(piece.value, RESCUED)) for piece in pieces]
    talk.note(asked, pieces)
