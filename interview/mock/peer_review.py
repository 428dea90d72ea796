"""The interviewer's side of a peer round: a script to read from, and evidence from answers and marks.

Numbers, options and runs are graded as in a session. Prose is marked by the interviewer, and counts as marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from interview.drills.figures import FIGURES
from interview.mock import evidence
from interview.mock.asking import tell, texts_of
from interview.mock.assessment import Assessment, assess
from interview.mock.case import Case
from interview.mock.drawn import Drawn
from interview.mock.explaining import LENGTHS, lacks, said_before
from interview.mock.peer import PeerSession, steps_of
from interview.mock.prose import of_prose
from interview.mock.scenario import Step, role_name
from interview.mock.talk import Asked, Talk
from prep_common.text import figure
from quizzes.free_text.scoring import score
from quizzes.grading import grade
from quizzes.question import KeyPoint, Run

Runs = Callable[[str, dict[str, Any]], dict[str, Any] | None]
"""Runs an experiment; None if it failed."""
REASONS = {
    "missing": "if they miss it",
    "contradicted": "if they say the opposite",
    "no_number": "if they give no number",
    "sure": "if they are sure and wrong",
    "missed": "if the prediction misses",
    "extension": "if it went well",
}


def step_of(drawn: Drawn, asked: Asked) -> Step | None:
    """Return the step of an answer; None for the opening."""
    _, _, name = asked.key.partition("/")
    return drawn.scenario.step(name) if name else None


def probes(drawn: Drawn, step: Step, run: Runs) -> Iterator[str]:
    """Yield each follow-up of a step: when to ask it, the question, the answer."""
    for follow_up in drawn.scenario.follow_ups(step.id):
        kind, _, point = (follow_up.when or "").partition(":")
        about = f" ({point.replace('_', ' ')})" if point else ""
        asks = " ".join(drawn.wording(follow_up).split())
        right = []
        if follow_up.answers or follow_up.choices:
            right = [f"{name}: **{value}**" for name, value in right_answers(drawn, follow_up, run)]
        yield " ".join([f"Follow up {REASONS.get(kind, kind)}{about}: {asks}", *right])


def right_answers(drawn: Drawn, step: Step, run: Runs) -> Iterator[tuple[str, str]]:
    """Yield (part, right answer) of a step with answers or choices, run with the numbers as they stand."""
    instance = drawn.question(step)
    result = None
    if step.experiment is not None:
        result = run(step.experiment.run, instance.run_args())
        if result is None:
            return
    texts = texts_of(instance)
    units = {answer.id: answer.unit or "" for answer in step.answers}
    for name, value in instance.expected(result).items():
        if name == "choice":
            yield "right", "; ".join(texts[option] for option in value)
        else:
            yield texts[name] or name.replace("_", " "), f"{figure(value)} {units[name]}".strip()


def script(drawn: Drawn, minutes: int, run: Runs) -> str:
    """Return the interviewer's script as Markdown: questions, facts, key points, probes, runs, model answers."""
    scenario = drawn.scenario
    lines = [
        f"# Interviewer's script: {scenario.title}\n",
        f"{role_name(scenario.role)}, {scenario.level}, {minutes} min.\n",
    ]
    lines += ["Read this aloud first:\n", f"> {' '.join(drawn.text(scenario.brief).split())}\n"]
    lines += ["## If they ask\n"]
    lines += [f"* {', '.join(fact.words[:3])}: {drawn.text(fact.answer)}" for fact in scenario.clarifications]
    for number, step in enumerate(steps_of(drawn, minutes), 1):
        lines += ["", *step_script(number, drawn, step, run)]
    return "\n".join(lines) + "\n"


def step_script(number: int, drawn: Drawn, step: Step, run: Runs) -> Iterator[str]:
    """Yield what the interviewer needs for one step: question, key points, right answers, probes, a model answer."""
    yield f"## {number}. {step.stage}, {step.minutes:g} min\n"
    yield f"> {' '.join(drawn.wording(step).split())}\n"
    yield from _points(drawn.key_points(step))
    if step.answers or step.choices:
        for pick in step.picks:
            yield f"* Let them choose: {pick.ask}. The answer below is for {pick.start}."
        yield from (f"* {name}: **{value}**" for name, value in right_answers(drawn, step, run))
    if step.reverse is not None:
        yield f"* The wrong answer: {' '.join(drawn.text(step.reverse.answer).split())}"
        for test in step.reverse.tests:
            result = run(test.run.run, drawn.value(test.run.args))
            shown = "the run failed" if result is None else drawn.text(test.shows, result=result)
            refutes = result is not None and drawn.holds(test.refutes, result=result)
            word = "**It refutes.**" if refutes else "It does not refute."
            yield f"* {drawn.text(test.text)} {' '.join(shown.split())} {word}"
        yield from (f"* Flaw: {drawn.text(flaw.text)}" for flaw in step.reverse.flaw if flaw.right is True)
    if step.canvas is not None:
        yield from (f"* Goal: {drawn.text(goal.say)}" for goal in step.canvas.goals)
        best = ", ".join(f"{name} {value}" for name, value in drawn.value(step.canvas.solution).items())
        yield f"* A design that meets all goals: {best}"
    if step.incident is not None:
        yield f"* Look, cause and repair: {Case.of(step).model_answer}"
    yield from (f"* {line}" for line in probes(drawn, step, run))
    if step.rescue:
        yield f"* If they are stuck: {' '.join(drawn.text(step.rescue).split())}"
    if step.five:
        yield f"\n**An answer that would score 5.** {' '.join(drawn.text(step.five).split())}"


def _points(points: list[KeyPoint]) -> Iterator[str]:
    for point in points:
        must = " (must)" if point.must else ""
        yield f"- [ ] {' '.join(point.say.split())}{must}"


def review(session: PeerSession, run: Runs) -> Talk:
    """Grade all answers of a round, with the interviewer's marks for prose. Return its talk with the evidence."""
    talk, drawn = session.talk, session.drawn
    talk.evidence.clear()
    for asked in talk.asked:
        step = step_of(drawn, asked)
        if step is not None and (asked.replies or asked.passed):
            judge(talk, drawn, step, asked, run, session.round.marks.get(step.id, {}))
    return talk


def assessed(session: PeerSession, run: Runs) -> Assessment:
    """Return the marks of a round."""
    talk = review(session, run)
    talk.ratings = dict(session.round.ratings)
    return assess(talk)


def judge(talk: Talk, drawn: Drawn, step: Step, asked: Asked, run: Runs, marks: Mapping[str, str]) -> None:
    """Put the measured figures beside an answer, and keep its evidence."""
    axes, key = list(step.axes), asked.key
    asked.rows, asked.run = [], {}
    if asked.passed:
        kinds: dict[str, evidence.Kind] = {"prose": "words", "canvas": "design", "code": "program"}
        return talk.note(
            asked, evidence.of_silence(axes, key, kinds.get(step.form, evidence.kind_of(step.answers)))
        )
    if step.form == "prose":
        return talk.note(asked, _of_prose(drawn, step, asked, marks))
    if step.form in ("ask", "experiment"):
        instance = drawn.question(step)
        result = None
        if step.experiment is not None:
            result = run(step.experiment.run, instance.run_args())
            if result is None:
                return None
            asked.run = {"name": step.experiment.run, "args": instance.run_args(), "result": result}
        graded = grade(instance, asked.replies["replies"], result)
        tell(talk, asked, instance, graded)
        asked.explain = drawn.text(step.explain, **({} if result is None else {"result": result}))
        return talk.note(
            asked, evidence.of_answers(graded, axes, key, rescued=False, texts=texts_of(instance))
        )
    if step.form == "canvas":
        return _judge_design(talk, drawn, step, asked, run)
    if step.form == "incident":
        looked = {FIGURES[name].look for name in asked.replies["evidence"]}
        asked.replies["looks"] = sorted(looked)  # all looks are free in a round
        Case.of(step).judge(talk, asked, axes)
        return None
    if step.form == "reverse":
        return _judge_reverse(talk, drawn, step, asked, run)
    passed, failed = asked.replies["passed"], asked.replies["failed"]
    tries = int(asked.replies.get("tries") or 1)
    asked.rows = [("checks that pass", "", f"{len(passed)} of {len(passed) + len(failed)}", not failed)]
    return talk.note(asked, evidence.of_code(len(passed), len(failed), tries, axes, key))


def _of_prose(drawn: Drawn, step: Step, asked: Asked, marks: Mapping[str, str]) -> list[evidence.Evidence]:
    """Return the evidence of prose: the interviewer's marks on every axis but communication."""
    points = drawn.key_points(step)
    lo, hi = LENGTHS.get(step.stage, (40, 150))
    asked.marks = dict(marks)
    asked.makes_a_point = bool({"hit", "partial"} & set(marks.values()))
    none = "" if "hit" in marks.values() else "the interviewer marked no key point as made"
    asked.lacks = lacks(len(asked.replies["text"].split()), "", none)
    pieces = of_prose(
        asked.replies["text"],
        points,
        {},
        {},
        [axis for axis in step.axes if axis == "communication"],
        asked.key,
        clarified=len({question["fact"] for question in asked.clarified if question["fact"]}),
        lo=lo,
        hi=hi,
        seconds=asked.seconds,
        minutes=asked.minutes,
        said=said_before(drawn, asked),
    )
    if marks:
        share = score(points, marks, {}).share  # type: ignore[arg-type]
        said = f"{sum(mark == 'hit' for mark in marks.values())} of {len(points)} key points, marked by the interviewer"
        pieces += [
            evidence.Evidence(axis, 1 + 4 * share, said, asked.key)
            for axis in step.axes
            if axis != "communication"
        ]
    return pieces


def _judge_design(talk: Talk, drawn: Drawn, step: Step, asked: Asked, run: Runs) -> None:
    canvas = step.canvas
    assert canvas is not None
    args, values, best = drawn.value(canvas.run.args), asked.replies["values"], drawn.value(canvas.solution)
    result, reference = (run(canvas.run.run, {**args, **chosen}) for chosen in (values, best))
    if result is None or reference is None:
        return
    names = {**values, "result": result}
    met = [drawn.holds(goal.holds, **names) for goal in canvas.goals]
    cost = float(drawn.value(canvas.cost, **names))
    par = float(drawn.value(canvas.cost, **best, result=reference))
    asked.rows = [
        (drawn.text(goal.say, **names), "", drawn.text(goal.shows, **names), ok)
        for goal, ok in zip(canvas.goals, met, strict=True)
    ] + [("cost", "", f"{cost:,.2f} {canvas.cost_unit}; reference {par:,.2f}", True)]
    talk.note(asked, evidence.of_canvas(met, cost, par, list(step.axes), asked.key, 1))


def _judge_reverse(talk: Talk, drawn: Drawn, step: Step, asked: Asked, run: Runs) -> None:
    reverse = step.reverse
    assert reverse is not None
    test = next(candidate for candidate in reverse.tests if candidate.id == asked.replies["test"])
    result = _run(drawn, test.run, run)
    if result is None:
        return
    refuted = drawn.holds(test.refutes, result=result)
    texts = {flaw.id: drawn.text(flaw.text) for flaw in reverse.flaw}
    right = [flaw.id for flaw in reverse.flaw if flaw.right is True]
    said = asked.replies["flaw"]
    asked.rows = [
        (drawn.text(test.text), "refutes it", drawn.text(test.shows, result=result), refuted),
        ("flaw", texts[said], ", ".join(texts[flaw] for flaw in right), said in right),
    ]
    talk.note(asked, evidence.of_reverse([refuted], said in right, list(step.axes), asked.key))


def _run(drawn: Drawn, wanted: Run, run: Runs) -> dict[str, Any] | None:
    return run(wanted.run, drawn.value(wanted.args))
