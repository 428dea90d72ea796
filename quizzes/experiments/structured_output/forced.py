from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.structured_output._toy import bits_of, compile_regex


@experiment("E41")
def forced(
    ctx: Context,
    texts: list[str] = arg(["small", "smart", "medium"], chars=(1, 40), count=(1, 20)),
    said: str = arg("smart", chars=(1, 40)),
) -> Result:
    """Find the positions at which a grammar allows one token only, which jump-forward decoding can skip.

    Follows `said`, one of `texts`, with a vocabulary of single characters, and reads every mask.

    Returns:
        One output, letter by letter.
        positions [positions]: Tokens of the output, end-of-sequence included.
        forced [positions]: Positions with exactly one allowed token.
        forced_share [share]
        choices [tokens]: By position: number of allowed tokens.
    """
    import re

    import numpy as np

    if said not in texts:
        raise ValueError(f"{said!r} is none of the texts: {', '.join(texts)}")
    letters = sorted(set("".join(texts)))
    grammar = compile_regex(letters, "|".join(re.escape(text) for text in texts)).start()
    size = len(letters) + 1
    counts = []
    for token in [*(letters.index(letter) for letter in said), len(letters)]:
        words = np.zeros(-(-size // 32), np.int32)
        grammar.fill_bitmask(words)
        counts.append(len(bits_of(words.view(np.uint32).tolist(), size)))
        grammar.accept_tokens([token])
    alone = sum(count == 1 for count in counts)
    return Result(positions=len(counts), forced=alone, forced_share=alone / len(counts), choices=counts)
