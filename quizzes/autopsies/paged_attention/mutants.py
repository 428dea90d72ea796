"""Repairs of paged_attention that are still wrong: the solution with one thing changed, and the check that sees it."""

from quizzes.autopsies.programs import Mutant

MUTANTS = (
    Mutant(
        "half_becomes_float",
        "check_half_precision_works",
        "returns fp32 for fp16",
        (
            "        output = torch.empty_like(query)\n",
            "        output = torch.empty_like(query, dtype=torch.float32)\n",
        ),
    ),
    Mutant(
        "heads_interleaved",
        "check_grouped_query_heads",
        "query head h reads KV head h modulo num_kv_heads",
        (
            "        return tokens.repeat_interleave(self.group, dim=1)\n",
            "        return tokens.repeat(1, self.group, 1)\n",
        ),
    ),
    Mutant(
        "masked_with_zero",
        "check_what_lies_behind_a_sequence_does_not_matter",
        "multiplies by zero, and nan stays nan",
        (
            "        position = torch.arange(length)\n",
            "        position = torch.arange(len(table) * self.block_size)\n",
        ),
        (
            """\
        tokens = cache[table[position // self.block_size], position % self.block_size]
""",
            """\
        tokens = cache[table[position // self.block_size], position % self.block_size]
        tokens = (tokens * (position < length)[:, None, None])[:length] + 0 * tokens.sum()
""",
        ),
    ),
    Mutant(
        "no_scale",
        "check_a_decode_equals_dense_attention",
        "scores are not divided by the square root of head_dim",
        (
            """\
        scores = torch.einsum("thd,shd->hts", query.float(), keys.float()) / self.head_dim**0.5
""",
            '        scores = torch.einsum("thd,shd->hts", query.float(), keys.float())\n',
        ),
    ),
    Mutant(
        "not_causal",
        "check_a_prompt_is_causal",
        "every query sees the whole sequence",
        (
            '        weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)\n',
            '        weights = scores.masked_fill(future & False, float("-inf")).softmax(dim=-1)\n',
        ),
    ),
    Mutant(
        "positions_from_zero",
        "check_a_chunk_knows_its_position",
        "queries are taken for the first tokens of the sequence",
        (
            "        position = torch.arange(length - tokens, length)\n",
            """\
        position = torch.arange(tokens) if tokens > 1 else torch.tensor([length - 1])
""",
        ),
    ),
    Mutant(
        "whole_blocks",
        "check_sequences_of_different_lengths",
        "reads whole blocks, past the end of the sequence",
        (
            "        position = torch.arange(length)\n",
            "        position = torch.arange(-(-length // self.block_size) * self.block_size)\n",
        ),
    ),
)
