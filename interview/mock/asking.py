"""Numbers and options: ask, let the interviewer run the experiment, compare. Also the question for the beginning."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from interview.mock import evidence
from interview.mock.drawn import Drawn
from interview.mock.estimates import is_boundless
from interview.mock.reacting import reaction
from interview.mock.scenario import Step
from interview.mock.talk import Asked, Conversation, Heard, Talk
from interview.mock.turns import Ask, Form, RunExperiment, Turn, read_pick
from prep_common.text import figure
from quizzes.grading import Graded, grade
from quizzes.instance import Instance

LETS_RUN_IT = ("Let's run it.", "Let's see what the engine says.", "I'll run that.")


def ask_step(talk: Talk, drawn: Drawn, step: Step, asked: Asked) -> Conversation:
    """Ask a step with answers or choices: the candidate's own numbers, the prediction, the run, the gap."""
    say = asked.say
    if step.picks:
        heard = yield talk.turn(asked, "picks", say, _form(drawn, step), began=True)
        values = talk.hear(asked, heard)["values"]
        start = drawn.said[step.id]
        drawn.said[step.id] = {p.id: read_pick(p, values.get(p.id, start[p.id])) for p in step.picks}
        asked.replies["values"] = dict(drawn.said[step.id])
        say = ""
    yield from ask_instance(
        talk, asked, drawn.question(step), say, list(step.axes), rescue=drawn.text(step.rescue)
    )
    result = asked.run.get("result")
    if step.explain and (step.experiment is None or result is not None):
        asked.explain = drawn.text(step.explain, **({} if result is None else {"result": result}))
    if step.experiment is not None and result is not None:
        talk.preface = f"{asked.reaction} {asked.explain}".strip()


def ask_instance(
    talk: Talk, asked: Asked, instance: Instance, say: str, axes: list[str], *, rescue: str = ""
) -> Conversation:
    """Ask a graded question; run its experiment, if it has one, between the answer and the verdict."""
    run = instance.question.experiment
    reply = yield from _reply(talk, asked, instance, say, rescue if run is None else "")
    result: dict[str, Any] | None = None
    if run is not None:
        result = yield from run_experiment(talk, asked, run.run, instance.run_args())
    if reply.get("pass"):
        asked.passed = True
        if result is not None:
            talk.preface = f"The run says: {_truth(instance, result)}."
        kind = evidence.kind_of(instance.question.answers)
        return talk.note(asked, evidence.of_silence(axes, asked.key, kind))
    if run is not None and result is None:
        return  # no result, nothing is scored
    graded = grade(instance, reply["replies"], result)
    tell(talk, asked, instance, graded)
    texts, rescued = texts_of(instance), asked.rescued
    asked.reaction = reaction(graded, texts, ran=result is not None)
    talk.preface = f"{talk.preface} {asked.reaction}".strip()
    sure = evidence.UNSURE if asked.confidence is None else asked.confidence
    talk.note(
        asked, evidence.of_answers(graded, axes, asked.key, rescued=rescued, confidence=sure, texts=texts)
    )


def _truth(instance: Instance, result: dict[str, Any]) -> str:
    """Return what a run shows, in words."""
    texts, units = texts_of(instance), {answer.id: answer.unit or "" for answer in instance.question.answers}
    said = [
        ", ".join(texts.get(option, str(option)) for option in value).rstrip(".")
        if key == "choice"
        else f"{texts.get(key) or key.replace('_', ' ')} {figure(value)} {units.get(key, '')}".strip()
        for key, value in instance.expected(result).items()
    ]
    return "; ".join(said)


def texts_of(instance: Instance) -> dict[str, str]:
    """Return the texts of options and the names of answers, by id."""
    question = instance.question
    options = {choice.id: instance.render(choice.text) for choice in question.choices}
    return options | {answer.id: instance.render(answer.ask or "") for answer in question.answers}


def _reply(
    talk: Talk, asked: Asked, instance: Instance, say: str, rescue: str
) -> Generator[Turn, Heard, dict[str, Any]]:
    """Return the reply that counts. A first wrong or passed answer brings the hint, once, if there is one."""
    want = Ask(instance)
    heard = yield talk.turn(asked, "ask", say, want, began=not asked.replies)
    reply = talk.hear(asked, heard)
    is_wrong = bool(reply.get("pass")) or not grade(instance, reply["replies"]).all_right if rescue else False
    if is_wrong:
        asked.rescued = True
        heard = yield talk.turn(asked, "again", rescue, want)
        reply = talk.hear(asked, heard)
    asked.replies |= {"replies": reply.get("replies", {})}
    asked.confidence = reply.get("confidence")
    return reply


def run_experiment(
    talk: Talk, asked: Asked, name: str, args: dict[str, Any], label: str = "", *, silent: bool = False
) -> Generator[Turn, Heard, dict[str, Any] | None]:
    """Have the front end run it. Return its result, or None if it failed; the failure is told with the next turn.

    silent: the interviewer does not announce the run."""
    say = "" if silent else LETS_RUN_IT[(talk.spec.seed + len(talk.asked)) % len(LETS_RUN_IT)]
    kept = (talk.preface, talk.chart) if silent else ("", None)  # they belong to the next turn that is seen
    if silent:
        talk.preface, talk.chart = "", None
    heard = yield talk.turn(asked, f"run{label}", say, RunExperiment(name, args))
    talk.preface, talk.chart = kept
    reply = heard.reply  # the candidate's clock stands still
    asked.run = {"name": name, "args": args, **reply}
    if "result" in reply:
        return dict(reply["result"])
    talk.preface = f"The run failed ({reply['failed']}). It does not count; let's go on."
    return None


def tell(talk: Talk, asked: Asked, instance: Instance, graded: Graded) -> None:
    """Keep the verdict for the report, and put the figures of a run beside the prediction."""
    asked.all_right = graded.all_right
    asked.intervals = [part.hit for part in graded.parts if part.hit is not None]
    asked.boundless = sum(map(is_boundless, graded.parts))
    asks = {answer.id: answer.ask or answer.id.replace("_", " ") for answer in instance.question.answers}
    texts = {choice.id: instance.render(choice.text) for choice in instance.question.choices}
    for part in graded.parts:
        shown = [
            ", ".join(texts.get(option, str(option)) for option in value)
            if part.id == "choice"
            else f"{figure(value)} {part.unit}".strip()
            for value in (part.given, part.expected)
        ]
        if part.interval is not None:
            shown[0] += f" ({figure(part.interval[0])} to {figure(part.interval[1])})"
        asked.rows.append((instance.render(asks.get(part.id, "choice")), shown[0], shown[1], part.ok))
    if "result" in asked.run or talk.spec.coach:
        talk.chart = {**asked.run, "rows": asked.rows}
    if talk.spec.coach:
        talk.preface = "Right." if graded.all_right else "Not quite."


def _form(drawn: Drawn, step: Step) -> Form:
    return Form(tuple(step.picks), dict(drawn.said[step.id]))
