"""Programs of interview guides under review: their checks and probes."""

from typing import Any

from quizzes.experiments import Result, arg, experiment


@experiment("E55", seconds=8)
def checks(folder: str = "block_manager", source: str = arg("", chars=(0, 100_000))) -> Result:
    """Run all checks of a program on a repaired version.

    folder: a program in quizzes/autopsies. source: Python text; empty for the program unchanged.

    Returns: By check, in the order of the file.
        names, says, passed
        why: Failure message; "" if the check passed.
        num_passed, num_checks [checks]
    """
    from quizzes.autopsies.programs import read, run_checks

    results = run_checks(folder, source or read(folder))
    return Result(
        names=[result.name for result in results],
        says=[result.says for result in results],
        passed=[result.ok for result in results],
        why=[result.why for result in results],
        num_passed=sum(result.ok for result in results),
        num_checks=len(results),
    )


@experiment("E55", seconds=8)
def probe(
    folder: str = "block_manager",
    probe: str = "append_to_allocated",
    args: dict[str, Any] | None = None,
) -> Result:
    """Run one probe on the program under review, unchanged.

    folder: a program in quizzes/autopsies. probe: a function of its probes.py. args: the probe's arguments.

    Returns: Either a value or an exception.
        raised: Class of the exception; "" if there was none.
        message
        value [value]: Return value of the probe; None if it raised.
    """
    from quizzes.autopsies.programs import UnknownProgram
    from quizzes.autopsies.programs import probe as run_probe

    try:
        return Result(raised="", message="", value=run_probe(folder, probe, args or {}))
    except UnknownProgram:
        raise
    except Exception as error:
        message = (str(error).splitlines() or [""])[0]
        return Result(raised=type(error).__name__, message=message, value=None)
