from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.structured_output._toy import bits_of, compile_regex


@experiment("E41")
def token_mask(
    ctx: Context,
    vocabulary: list[str] = arg(
        ["t", "true", "tru", "e", "ue", "r", "false", "fal", "se", "f", " "], chars=(1, 40), count=(1, 200)
    ),
    regex: str = arg("true|false", chars=(1, 200)),
    said: list[str] = arg(["t"], chars=(1, 40), count=(0, 50)),
) -> Result:
    """Compute the tokens that a regular expression allows after some tokens of a toy vocabulary, as the sampler's
    bits.

    Returns:
        One row of a step's bitmask.
        allowed [tokens]: Sorted by their place in the vocabulary; end-of-sequence is "<eos>".
        num_allowed [tokens]
        eos_allowed
        accepted [tokens]: Tokens of `said` that the grammar accepted, from the left.
        words [int32]: Bit v % 32 of word v // 32 stands for token v.
    """
    import numpy as np

    compiled = compile_regex(vocabulary, regex)
    grammar = compiled.start()
    ids = {token: index for index, token in enumerate(vocabulary)}
    accepted = grammar.validate_tokens([ids.get(token, len(vocabulary)) for token in said])
    grammar.accept_tokens(accepted)
    words = np.zeros(-(-(len(vocabulary) + 1) // 32), np.int32)
    grammar.fill_bitmask(words)
    names = [*vocabulary, "<eos>"]
    allowed = bits_of(words.view(np.uint32).tolist(), len(names))
    return Result(
        allowed=[names[token] for token in allowed],
        num_allowed=len(allowed),
        eos_allowed=len(vocabulary) in allowed,
        accepted=len(accepted),
        words=words.tolist(),
    )
