"""`prep new`: write the skeleton of an item of the workbench, whose tests fail until it is complete."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Annotated

from app.cli import terminal
from app.cli.options import JsonOption, argument, option
from app.new import KINDS, NotPossible, check_room, forms_of, make, write

_FORMS = f"""The kind of a question: {", ".join(forms_of("question"))}.
The track of a lab: {", ".join(forms_of("lab"))}. The first is the default."""


def new(
    kind: Annotated[str, argument(f"One of: {', '.join(KINDS)}.", metavar="KIND")],
    name: Annotated[str, argument("Its name; TOPIC.NAME for a question or an experiment.", metavar="NAME")],
    form: Annotated[str | None, option(_FORMS)] = None,
    dry_run: Annotated[bool, option("Show the files and write none.", "--dry-run")] = False,
    json: JsonOption = False,
) -> None:
    """Write the skeleton of a new item into this checkout: all of its files, or none.

    Its tests fail until it is complete, and name what is missing.

    \b
    Examples:
      prep new lab my_lab --form serving --dry-run
      prep new question memory.my_question --form numeric --dry-run
      prep new command my_command --dry-run --json
    """
    try:
        item = make(kind, name, form)
        (check_room if dry_run else write)(item)
    except NotPossible as error:
        raise terminal.Problem(str(error), error.next_step) from None
    if json:
        shown = {"files": item.files, "written": not dry_run, "next": item.next_steps}
        return terminal.print_json({"kind": kind, "name": name, **shown})
    for path, text in item.files.items():
        if dry_run:
            terminal.say(f"[bold]{path}[/]")
            print(text)
        else:
            terminal.say(path, whole=True)
    if item.by_default:
        terminal.note(item.by_default)
    terminal.note("\n[dim]next:[/]")
    for line in _lines([terminal.as_typed(step) for step in item.next_steps], terminal.err().width):
        terminal.note(terminal.literal(line))


def _lines(steps: list[str], columns: int) -> Iterator[str]:
    """Yield the lines of the next steps: commands whole; an explanation beside its command, or below it if too wide."""
    pairs = [step.partition("  ") for step in steps]
    width = max(len(command) for command, _, why in pairs if why)
    if any(len(f"  {command:{width}}  {why}") > columns for command, _, why in pairs if why):
        width = 0
    for command, _, why in pairs:
        line = f"  {command:{width}}  {why}".rstrip()
        if len(line) <= columns or not why:
            yield line
            continue
        yield f"  {command}"
        indent = " " * 6
        yield from textwrap.wrap(
            why, columns, initial_indent=indent, subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
