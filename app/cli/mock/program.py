"""Code to write: a file in the session's folder, edited in any editor and checked in the sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.cli import terminal
from app.cli.mock import showing
from app.cli.mock.conversation import Conversation
from app.cli.quiz.dialogue import Quit, Skip
from app.cli.quiz.editor import edit_file
from app.cli.quiz.showing import console
from interview.mock import coding
from interview.mock.coding import Checked
from interview.mock.turns import Program
from prep_common.paths import write_atomically
from prep_common.text import counted
from prep_common.text_file import UnreadableFile, read_text

KEYS = "Enter check · e editor · c show · r start over · done · ? help · q leave"
HELP = (
    "Edit the file in another window, or with e in $EDITOR; Enter runs all checks in a sandbox. done hands in the "
    "program as it is; when all checks pass, that happens by itself. A path checks another file. "
    "/clarify QUESTION · /pause · /time · /draw"
)
LONGEST = 200_000


def read_program(talk: Conversation, want: Program) -> dict[str, Any]:
    """Return the program and its checks. Raises Quit."""
    path = talk.folder / f"{coding.name_of(want.code)}.py"
    if not path.exists():
        write_atomically(path, coding.start(want.code))
    terminal.say(f" your file: [bold]{terminal.literal(path)}[/]", whole=True)
    talk.say_note(KEYS)
    data = talk.draft.data
    while True:
        try:
            line = talk.floor.read(" code > ")
        except Skip:
            line = "done"
        key = line.lower()
        if key in ("q", ":q"):
            raise Quit
        if key in ("?", ":?"):
            talk.say_note(HELP)
        elif key in ("e", ":e"):
            edit_file(path)
        elif key == "c":
            showing.exhibit(_read(path) or "")
        elif key == "r":
            _start_over(talk, path, coding.start(want.code))
        elif key == "done":
            attempt = _check(talk, want, path, tell=False)
            if attempt is not None:
                return _reply(attempt, data)
        else:
            attempt = _check(talk, want, Path(line).expanduser() if line else path)
            if attempt is not None and attempt[1].all_pass:
                return _reply(attempt, data)


def _reply(attempt: tuple[str, Checked], data: dict[str, Any]) -> dict[str, Any]:
    source, checked = attempt
    return {
        "source": source,
        "passed": checked.passed,
        "failed": checked.failed or ([] if checked.passed else ["loads"]),
        "tries": max(1, data.get("tries", 0)),
    }


def _check(talk: Conversation, want: Program, path: Path, *, tell: bool = True) -> tuple[str, Checked] | None:
    """Run all checks and print them. Return None if nothing could be run."""
    source = _read(path)
    if source is None:
        return None
    where = console()
    where.print(" [dim]checking (Ctrl-C stops) …[/]")
    try:
        checked = coding.check(want.code, source)
    except KeyboardInterrupt:
        showing.warning("the checks were interrupted")
        return None
    finally:
        talk.floor.drain()
    if tell:
        talk.draft.data["tries"] = talk.draft.data.get("tries", 0) + 1
        talk.keep()
    showing.checks(checked)
    return source, checked


def _read(path: Path) -> str | None:
    try:
        source = read_text(path)
    except UnreadableFile as error:
        showing.warning(str(error))
        return None
    if not source.strip():
        showing.warning(f"{path} is empty; r starts over")
        return None
    if len(source) > LONGEST:
        showing.warning(f"{path} has {counted(len(source), 'character')}; {LONGEST:,} is the limit")
        return None
    return source


def _start_over(talk: Conversation, path: Path, given: str) -> None:
    """Restore the given program and keep the candidate's file beside it."""
    if path.exists():
        number = 1
        while (kept := path.with_suffix(f".{number}.py")).exists():
            number += 1
        path.rename(kept)
        talk.say_note(f"your file is now {terminal.shown(kept)}")
    write_atomically(path, given)
