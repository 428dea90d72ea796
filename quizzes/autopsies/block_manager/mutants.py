"""Repairs of block_manager that are still wrong: the solution with one thing changed, and the check that sees it."""

from quizzes.autopsies.programs import Mutant

MUTANTS = (
    Mutant(
        "append_counts_owners",
        "check_a_reference_is_an_owner",
        "every append counts as an owner",
        (
            "        self.tokens += tokens\n",
            """\
        self.tokens += tokens
        self.ref_count += 1
""",
        ),
    ),
    Mutant(
        "double_free_is_silent",
        "check_freeing_twice_is_refused",
        "a second free puts the block into the queue twice",
        (
            """\
        if any(block.ref_count < 1 for block in table):
            raise ValueError("a block of this table has no owner: it was freed before")
""",
            "",
        ),
    ),
    Mutant(
        "free_count_is_a_search",
        "check_allocation_does_not_search",
        "num_free goes through every block",
        (
            "        return len(self.free_blocks)\n",
            "        return sum(block.ref_count == 0 for block in self.blocks)\n",
        ),
    ),
    Mutant(
        "free_ignores_sharing",
        "check_a_shared_block_outlives_its_first_owner",
        "free releases the block although another request uses it",
        (
            "            block.ref_count -= 1\n",
            "            block.ref_count = 0\n",
        ),
    ),
    Mutant(
        "grow_keeps_what_it_got",
        "check_a_sequence_grows_by_blocks",
        "a grow that fails half way keeps the blocks",
        (
            """\
        if needed > len(self.free_blocks):
            return False
""",
            "",
        ),
        (
            "        for _ in range(needed):\n",
            """\
        for _ in range(needed):
            if not self.free_blocks:
                return False
""",
        ),
    ),
    Mutant(
        "one_block_too_many",
        "check_allocate_is_all_or_nothing",
        "rounds up where the tokens fit exactly, so 0 tokens take a block",
        (
            "        needed = -(-num_tokens // self.block_size) - len(table)\n",
            "        needed = num_tokens // self.block_size + 1 - len(table)\n",
        ),
    ),
    Mutant(
        "tokens_overflow",
        "check_append_goes_on_until_the_block_is_full",
        "one token more than fits is accepted",
        (
            "        if len(self.tokens) + len(tokens) > self.block_size:\n",
            "        if len(self.tokens) + len(tokens) > self.block_size + 1:\n",
        ),
    ),
)
