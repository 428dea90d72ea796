"""Repairs of attention_kernel that are still wrong: the solution with one thing changed, and the check that sees it."""

from quizzes.autopsies.programs import Mutant

MUTANTS = (
    Mutant(
        "no_maximum",
        "check_large_scores_do_not_overflow",
        "exponentials of raw scores overflow",
        (
            "    top, total = -math.inf, 0.0\n",
            "    total = 0.0\n",
        ),
        (
            """\
        new_top = max(top, score)
        shrink, weight = math.exp(top - new_top), math.exp(score - new_top)
""",
            """\
        new_top = 0.0
        shrink, weight = 1.0, math.exp(score - new_top) if score < 700 else math.inf
""",
        ),
        (
            "        top = new_top\n",
            "",
        ),
    ),
    Mutant(
        "no_scale",
        "check_the_scale_is_there",
        "scores are not divided",
        (
            "    scale = 1.0 / math.sqrt(len(query))\n",
            "    scale = 1.0\n",
        ),
    ),
    Mutant(
        "old_output_not_shrunk",
        "check_the_result_is_a_weighted_value",
        "a new maximum rescales the sum and forgets the output",
        (
            """\
        output = [o * shrink + weight * v for o, v in zip(output, value, strict=True)]
""",
            "        output = [o + weight * v for o, v in zip(output, value, strict=True)]\n",
        ),
    ),
    Mutant(
        "two_passes",
        "check_keys_are_read_once",
        "looks for the maximum first",
        (
            "    for token in range(seq_len):\n",
            """\
    for token in range(seq_len):
        key = key_blocks[block_table[token // block_size]][token % block_size]
        top = max(top, scale * sum(q * k for q, k in zip(query, key, strict=True)))
    for token in range(seq_len):
""",
        ),
    ),
    Mutant(
        "weights_do_not_sum_to_one",
        "check_copies_of_a_token_change_nothing",
        "the sum of the weights is left out",
        (
            "    return [o / total for o in output]\n",
            "    return list(output)\n",
        ),
    ),
)
