"""Read the replies to a question: values, intervals, options, a confidence. Unreadable ones are asked again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.padding import Padding

from app.cli.quiz import showing
from app.cli.quiz.dialogue import HELP, Dialogue
from quizzes.grading import ParseError, asked_keys, check_reply

if TYPE_CHECKING:
    from quizzes.instance import Instance

Say = Callable[[str | Padding], None]
AGAIN = "n"
"""Reply to the prompt for an interval that asks for its number again."""


def read_replies(
    dialogue: Dialogue,
    instance: Instance,
    say: Say,
    *,
    hint: Callable[[int], int] | None = None,
    known: dict[str, str] | None = None,
    keep: Callable[[], object] = lambda: None,
    help: str = HELP,
    skip: str = "/s skips it",
) -> tuple[dict[str, str], int]:
    """Read a parseable reply for every part. Return the replies and the number of hints shown. Raises Skip, Quit.

    hint: prints the hint with that number and returns 1, or 0 if there is none. known: replies that were read before;
    each new one is added to it, then `keep` is called. An interval may be left out: "" in `known`; AGAIN instead of it
    asks for its number again. skip: told after words where a number is asked for, such as "I do not know".
    """
    replies = {} if known is None else known
    hints = 0
    words = {answer.id for answer in instance.question.answers if answer.type in ("word", "words")}
    while (key := next((name for name in asked_keys(instance) if name not in replies), None)) is not None:
        command, line = dialogue.command_or_text(
            f" {showing.asked(instance, key)} > ", words=key in words, hints=hint is not None
        )
        number, is_interval = key.removesuffix(".interval"), key.endswith(".interval")
        if command == "help":
            say(showing.note(help))
        elif command == "hint":
            hints += hint(hints) if hint is not None else 0
        elif is_interval and line.lower() == AGAIN:
            del replies[number]
            keep()
        else:
            try:
                if line or not is_interval:
                    check_reply(instance, key, line, replies)
                replies[key] = line
                keep()
            except ParseError as error:
                offers = "" if any(letter.isdigit() for letter in line) else f"; {skip}"
                if is_interval:
                    offers += f"; {AGAIN}: type the number again"
                say(f" [yellow]{escape(str(error))}{offers}[/]")
    left_out = [key for key, text in replies.items() if key.endswith(".interval") and not text]
    return {key: text for key, text in replies.items() if key not in left_out}, hints


def read_confidence(dialogue: Dialogue, say: Say, effect: str = "Points do not depend on it.") -> int | None:
    """Read a confidence from 1 to 99, or None if the learner leaves it out. effect: what it changes, for the help.

    Raises Quit."""
    while True:
        command, line = dialogue.command_or_text(
            " confidence that all parts are right, 1-99 % (Enter: leave out) > ", hints=False, skips=False
        )
        if command == "help":
            explained = f"90 means that nine of ten such answers are right. {effect}"
            say(showing.note(f"{explained} Enter leaves it out; q quits."))
            continue
        if command == "skip":
            return None
        text = line.rstrip("% ").strip()
        if not text:
            return None
        if text.isascii() and text.isdigit() and 1 <= int(text) <= 99:
            return int(text)
        say(" [yellow]type a whole number from 1 to 99, or press Enter[/]")
