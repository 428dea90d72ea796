from quizzes.experiments import Context, Result, arg, experiment


@experiment("E55", seconds=8)
def checks(ctx: Context, folder: str = "block_manager", source: str = arg("", chars=(0, 100_000))) -> Result:
    """Run all checks of a program on a repaired version.

    folder: a program in quizzes/autopsies. source: Python text; empty for the program unchanged.

    Returns:
        By check, in the order of the file.
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
