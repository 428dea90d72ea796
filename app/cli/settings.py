"""Options that several commands share, and the parser of `--set key=value`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.terminal import Problem

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
ScriptOption = Annotated[
    Path | None, typer.Option("--script", metavar="FILE", help="Answers, one line per prompt.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="K=V", help="An argument of the experiment; repeat for more. Lists: lens=4,9,3"
    ),
]


def parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """Return name -> value: parsed as JSON if possible, as a list if there are commas, else as text."""
    values: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise Problem(f"--set needs name=value, not {pair!r}", next_step="for example --set slots=4")
        values[name.strip().replace("-", "_")] = parse_value(text.strip())
    return values


def parse_value(text: str) -> Any:
    """4 -> 4, true -> True, 4,9,3 -> [4, 9, 3], [4, 9] -> [4, 9], fcfs -> "fcfs"."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    if "," in text:
        return [parse_value(part.strip()) for part in text.split(",") if part.strip()]
    return {"True": True, "False": False, "None": None, "none": None}.get(text, text)
