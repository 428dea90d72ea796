"""Programs of interview guides under review: their probes."""

from typing import Any

from quizzes.experiments import Result, experiment


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


@experiment("E55", seconds=30)
def checks(folder: str = "block_manager", part: str = "given") -> Result:
    """Run the checks of a program on a version that ships.

    folder: a program in quizzes/autopsies. part: given, or solution.

    Returns: One entry per check.
        names: Checks in source order.
        passed: Whether each passed.
        num_passed [checks]
    """
    from quizzes.autopsies.programs import read, run_checks

    results = run_checks(folder, read(folder, part))
    passed = [result.ok for result in results]
    return Result(names=[result.name for result in results], passed=passed, num_passed=sum(passed))
