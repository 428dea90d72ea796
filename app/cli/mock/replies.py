"""One function per want: read what the candidate replies. All raise Quit; reply_to handles the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app.cli.mock import showing
from app.cli.mock.conversation import Conversation, read_line
from app.cli.mock.designing import read_form
from app.cli.mock.incident import read_drill, read_hypothesis
from app.cli.mock.program import read_program
from app.cli.mock.writing import read_prose
from app.cli.quiz.dialogue import Quit, Skip
from app.cli.quiz.free_text import MARK_EXPLANATION, MARK_HELP, MARKS
from app.cli.quiz.replies import read_confidence, read_replies
from app.cli.quiz.running import run_told
from app.cli.quiz.showing import bullet, console, options
from interview.mock.assessment import titles
from interview.mock.evidence import ASSUMED, STAKES
from interview.mock.turns import (
    Ask,
    Continue,
    Form,
    Hypothesis,
    Mark,
    Menu,
    Program,
    Prose,
    Rate,
    RunDrill,
    RunExperiment,
    Turn,
    Want,
)
from quizzes.experiments.registry import Inconclusive, NeedsHardware
from quizzes.experiments.runner import RunFailed

if TYPE_CHECKING:
    from rich.padding import Padding

ASK_HELP = (
    "For an option type its number. Numbers may be arithmetic (38*32) and have units (1.5 GiB); an interval is "
    "lo..hi; n instead of it asks for the number again. "
    "/clarify QUESTION · /pause · /time · /draw · /pass gives no answer · q leaves (/q where the answer is a word)"
)
NO_ANSWER = "/pass gives no answer"


def reply_to(talk: Conversation, turn: Turn) -> dict[str, Any]:
    """Return the reply to a turn. Raises Quit, KeyboardInterrupt."""
    return READERS[type(turn.want)](talk, turn.want)


def read_continue(talk: Conversation, want: Continue) -> dict[str, Any]:
    talk.say_note("Enter begins · ? help · q leaves; everything is kept")
    while True:
        try:
            line = talk.floor.read(" > ")
        except Skip:
            return {}
        if line.lower() in ("q", ":q"):
            raise Quit
        if line not in ("?", ":?"):
            return {}
        talk.floor.command("/help")


def read_ask(talk: Conversation, want: Ask) -> dict[str, Any]:
    instance = want.instance
    if instance.question.exhibit:
        showing.exhibit(instance.render(instance.question.exhibit))
    if instance.question.choices or instance.question.items:
        console().print()
        options(instance)
    known = talk.draft.data.setdefault("replies", {})
    if known:
        typed = (
            f"{'interval' if key.endswith('.interval') else instance.asked(key)}: {text or '-'}"
            for key, text in known.items()
        )
        talk.say_note(f"you have typed: {' · '.join(typed)}")
    try:
        replies, _ = read_replies(
            talk.floor, instance, _say(talk), known=known, keep=talk.keep, help=ASK_HELP, skip=NO_ANSWER
        )
        confidence = (
            read_confidence(talk.floor, _say(talk), f"{STAKES} {ASSUMED}") if want.confidence else None
        )
    except Skip:
        return {"pass": True}
    talk.draft.data.pop("replies", None)
    return {"replies": replies, "confidence": confidence}


def read_menu(talk: Conversation, want: Menu) -> dict[str, Any]:
    texts, numbers = dict(want.options), want.numbers
    showing.menu({number: texts[name] for number, name in numbers.items()})
    while True:
        line = read_line(talk.floor, " number > ")
        text = line.rstrip(".) ")
        if text.isascii() and text.isdigit() and int(text) in numbers:
            return {"pick": numbers[int(text)]}
        if text in texts:
            return {"pick": text}
        showing.warning(f"type one of {', '.join(map(str, numbers))}")


def read_mark(talk: Conversation, want: Mark) -> dict[str, Any]:
    where = console()
    if want.answer:
        talk.say_note("you said:")
        showing.quote(want.answer)
    where.print(bullet(want.point.say))
    said = f'closest: "{want.closest}"' if want.closest else "none of your sentences shares a word with it"
    showing.quote(said)
    if want.doubt:
        talk.say_note(f"{want.doubt}: h and p do not count")
    while True:
        try:
            key = talk.floor.read(f"   {MARK_HELP} > ").lower()
        except Skip:
            key = "?"
        if key in ("q", ":q"):
            raise Quit
        if key in MARKS:
            return {"mark": MARKS[key]}
        if key in ("?", ":?"):
            talk.say_note(MARK_EXPLANATION)


def read_rate(talk: Conversation, want: Rate) -> dict[str, Any]:
    talk.say_note("1 weak · 3 solid · 5 excellent, for this level. Enter leaves an axis out.")
    ratings = talk.draft.data.setdefault("ratings", {})
    axes = [axis for axis in want.axes if axis not in ratings]
    for axis in axes:
        value = _rating(talk, axis)
        if value is not None:
            ratings[axis] = value
            talk.keep()
    return {"ratings": dict(ratings)}


def _rating(talk: Conversation, axis: str) -> int | None:
    while True:
        try:
            line = talk.floor.read(f" {titles()[axis].lower()}, 1-5 > ")
        except Skip:
            return None
        if line.lower() in ("q", ":q"):
            raise Quit
        if not line:
            return None
        if line in ("1", "2", "3", "4", "5"):
            return int(line)
        showing.warning("type a whole number from 1 to 5, or press Enter")


def read_run(talk: Conversation, want: RunExperiment) -> dict[str, Any]:
    """Run the experiment. Whatever goes wrong is a reply: the interview continues."""
    known = talk.seconds_of.get(want.name, 0.0)
    told = "running {}" if talk.turn.say else "one moment"  # a run that the interviewer does not announce
    told += f" (about {known:.0f} s) …" if known >= 1 else " …"
    if not talk.seconds_of:
        talk.say_note("most runs take less than 8 s; Ctrl-C stops a run, not the interview")
        talk.seconds_of[""] = 0.0
    try:
        outcome = run_told(talk.runner, talk.floor, want.name, want.args, where=console(), told=told)
    except (Inconclusive, NeedsHardware, RunFailed, ValueError) as error:
        return {"failed": str(error) or type(error).__name__}
    if not outcome.cached:
        talk.seconds_of[want.name] = outcome.seconds
    return {"result": outcome.result, "seconds": round(outcome.seconds, 3)}


def _say(talk: Conversation) -> Callable[[str | Padding], None]:
    return lambda text: console().print(text)


READERS: dict[type[Want], Callable[[Conversation, Any], dict[str, Any]]] = {
    Continue: read_continue,
    Prose: read_prose,
    Ask: read_ask,
    Form: read_form,
    Menu: read_menu,
    Mark: read_mark,
    RunExperiment: read_run,
    RunDrill: read_drill,
    Hypothesis: read_hypothesis,
    Program: read_program,
    Rate: read_rate,
}
