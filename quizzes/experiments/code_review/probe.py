"""E55: what a program does when it is used, as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from quizzes.experiments import Context, experiment


@dataclass(frozen=True)
class Happened:
    """Either a value or an exception."""

    raised: str
    """Class of the exception; "" if there was none."""
    message: str
    value: Annotated[Any, "value"]
    """What the probe returned; None if it raised."""


@experiment("E55", seconds=8)
def probe(
    ctx: Context,
    *,
    folder: str = "block_manager",
    probe: str = "append_to_allocated",
    args: dict[str, Any] | None = None,
) -> Happened:
    """Use the program under review in a way that one of its probes describes.

    folder: a program in quizzes/autopsies. probe: a function of its probes.py. args: of that function.
    """
    from quizzes.autopsies.programs import UnknownProgram
    from quizzes.autopsies.programs import probe as run_probe

    try:
        value = run_probe(folder, probe, args or {})
    except UnknownProgram:
        raise
    except Exception as error:
        return Happened(type(error).__name__, str(error).splitlines()[0] if str(error) else "", None)
    return Happened("", "", value)
