from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.structured_output._toy import bits_of, compile_regex


@experiment("E41", "E36")
def draft_masks(
    ctx: Context,
    vocabulary: list[str] = arg(["a", "b", "c", "ab", "bc", "abc"], chars=(1, 40), count=(1, 200)),
    regex: str = arg("(abc)+", chars=(1, 200)),
    said: list[str] = arg(["a"], chars=(1, 40), count=(0, 50)),
    drafts: list[str] = arg(["b", "c", "c"], chars=(1, 40), count=(0, 16)),
) -> Result:
    """Build the grammar masks of a row with drafts: one after the newest token and one after each draft.

    Follows `engine/grammar/manager.py`.

    Returns:
        rows [masks]
        mask_bytes [B]
        allowed [tokens]: By mask: allowed tokens; all of them after a draft that breaks the grammar.
        legal_drafts [drafts]: Drafts from the left that the grammar would take.
        position_after [tokens]: Position of the grammar after the masks are made and the drafts are rolled back.
    """
    import numpy as np

    from engine.grammar.manager import fill_positions

    ids = {token: index for index, token in enumerate(vocabulary)}
    grammar = compile_regex(vocabulary, regex).start()
    accepted = [ids.get(token, len(vocabulary)) for token in said]
    grammar.accept_tokens(accepted)
    guesses = [ids.get(token, len(vocabulary)) for token in drafts]
    legal = len(grammar.validate_tokens(guesses))
    words = np.zeros((1 + len(guesses), -(-(len(vocabulary) + 1) // 32)), np.int32)
    fill_positions(grammar, guesses, words)
    undone = 0
    while True:  # the grammar's position is the number of tokens that can be rolled back
        try:
            grammar.rollback(1)
        except ValueError:
            break
        undone += 1
    size = len(vocabulary) + 1
    return Result(
        rows=len(words),
        mask_bytes=words.nbytes,
        allowed=[len(bits_of(line.tolist(), size)) for line in words.view(np.uint32)],
        legal_drafts=legal,
        position_after=undone,
    )
