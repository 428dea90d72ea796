from quizzes.experiments import Context, Result, arg, experiment


@experiment("E37", megabytes=2500)
def lookup(
    ctx: Context,
    tokens: list[int] = arg([5, 6, 7, 8, 9, 5, 6, 7], 0, 1_000_000, count=(1, 5000)),
    shortest: int = arg(2, 1, 20),
    longest: int = arg(5, 1, 20),
    k: int = arg(3, 1, 16),
) -> Result:
    """Find the drafts that the engine's n-gram drafter proposes for a list of tokens.

    The drafter takes the longest suffix that occurred before, at its last occurrence.

    Returns:
        Proposals after the last token.
        drafts [token ids]
        num_drafts [drafts]
        looked_up [tokens]: Length of the ending that was found earlier; 0: none, and nothing is proposed.
    """
    import numpy as np

    from engine.spec.ngram import continuation

    text = np.array(tokens, np.int32)
    found = continuation(text, shortest, longest, k)
    size = next((n for n in range(longest, shortest - 1, -1) if continuation(text, n, n, 1)), 0)
    return Result(drafts=found, num_drafts=len(found), looked_up=size)
