"""`prep new`: write the skeleton of an item of the workbench, whose tests fail until it is complete."""

from __future__ import annotations

from typing import Annotated

from app.cli import terminal
from app.cli.options import JsonOption, argument, option
from app.new import KINDS, NotPossible, check_room, make, write


def new(
    kind: Annotated[str, argument(f"One of: {', '.join(KINDS)}.", metavar="KIND")],
    name: Annotated[str, argument("Its name; TOPIC.NAME for a question or an experiment.", metavar="NAME")],
    form: Annotated[
        str | None, option("The kind of a question, such as choice; the track of a lab, such as serving.")
    ] = None,
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
    terminal.note("\n[dim]next:[/]")
    steps = [terminal.as_typed(step).partition("  ") for step in item.next_steps]
    width = max((len(command) for command, _, why in steps if why), default=0)
    for command, _, why in steps:
        terminal.note(f"  {terminal.literal(f'{command:{width}}  {why}'.rstrip())}")
