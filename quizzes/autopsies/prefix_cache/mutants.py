"""Repairs of prefix_cache that are still wrong: the solution with one thing changed, and the check that sees it."""

from quizzes.autopsies.programs import Mutant

MUTANTS = (
    Mutant(
        "blocks_by_their_own_tokens",
        "check_the_same_tokens_behind_another_start_are_another_block",
        "a block is found by its own tokens only",
        (
            """\
        for end in range(size, len(token_ids), size):  # not to the last token: its logits are needed
            key = tuple(token_ids[:end])
""",
            """\
        for end in range(size, len(token_ids), size):  # not to the last token: its logits are needed
            key = tuple(token_ids[end - size : end])
""",
        ),
        (
            """\
        for end in range(size, len(token_ids) + 1, size):
            key = tuple(token_ids[:end])
""",
            """\
        for end in range(size, len(token_ids) + 1, size):
            key = tuple(token_ids[end - size : end])
""",
        ),
        (
            "            self.blocks.move_to_end(tuple(token_ids[:end]))\n",
            "            self.blocks.move_to_end(tuple(token_ids[end - size : end]))\n",
        ),
    ),
    Mutant(
        "by_hash_alone",
        "check_different_tokens_never_collide",
        "two prefixes with one hash share a block",
        (
            """\
        for end in range(size, len(token_ids), size):  # not to the last token: its logits are needed
            key = tuple(token_ids[:end])
""",
            """\
        for end in range(size, len(token_ids), size):  # not to the last token: its logits are needed
            key = (hash(tuple(token_ids[:end])),)
""",
        ),
        (
            """\
        for end in range(size, len(token_ids) + 1, size):
            key = tuple(token_ids[:end])
""",
            """\
        for end in range(size, len(token_ids) + 1, size):
            key = (hash(tuple(token_ids[:end])),)
""",
        ),
        (
            "            self.blocks.move_to_end(tuple(token_ids[:end]))\n",
            "            self.blocks.move_to_end((hash(tuple(token_ids[:end])),))\n",
        ),
    ),
    Mutant(
        "counts_requests",
        "check_hits_are_counted",
        "counts requests where it should count tokens",
        (
            "        self.hits += len(found)\n",
            "        self.hits += bool(found)\n",
        ),
    ),
    Mutant(
        "head_goes_first",
        "check_a_chain_loses_its_tail_first",
        "the first block of a prompt is evicted before its last",
        (
            """\
        for end in range(len(token_ids) // size * size, 0, -size):  # the tail becomes the oldest
""",
            """\
        for end in range(size, len(token_ids) + 1, size):  # the tail becomes the oldest
""",
        ),
    ),
    Mutant(
        "hits_to_the_end",
        "check_the_last_token_is_computed",
        "a whole prompt is found and nothing is left to compute",
        (
            """\
        for end in range(size, len(token_ids), size):  # not to the last token: its logits are needed
""",
            """\
        for end in range(size, len(token_ids) + 1, size):  # not to the last token: its logits are needed
""",
        ),
    ),
    Mutant(
        "never_evicts",
        "check_it_never_holds_more_than_its_blocks",
        "max_size is remembered and never looked at",
        (
            """\
        while len(self.blocks) > self.num_blocks:
            self.blocks.popitem(last=False)
""",
            "",
        ),
    ),
)
