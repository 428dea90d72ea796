from quizzes.experiments import Context, Result, arg, experiment


@experiment()
def listed(
    ctx: Context,
    announced: int = arg(6, 0, 1000),
    labels: list[str] = arg(["rate", "lengths", "limits", "model", "card"], chars=(1, 80), count=(1, 100)),
) -> Result:
    """Compare the number of entries that a text announces with the number it lists.

    Returns:
        Labels that differ only in case or spaces count once.
        announced, listed [entries]
        missing [entries]: Announced but not there; negative: more than announced.
    """
    there = len({" ".join(label.lower().split()) for label in labels})
    return Result(announced=announced, listed=there, missing=announced - there)
