"""Repairs of paged_allocator that are still wrong: the solution with one thing changed, and the check that sees it."""

from quizzes.autopsies.programs import Mutant

MUTANTS = (
    Mutant(
        "a_block_for_every_token",
        "check_a_block_is_taken_when_the_last_is_full",
        "takes a block one token too early",
        (
            "        if self.num_tokens[name] == len(self.block_tables[name]) * self.block_size:\n",
            """\
        if self.num_tokens[name] + 1 >= len(self.block_tables[name]) * self.block_size:
""",
        ),
    ),
    Mutant(
        "hands_out_what_there_is",
        "check_too_few_blocks_is_an_error_that_changes_nothing",
        "hands out fewer blocks than were asked for",
        (
            """\
        if count > len(self.free_blocks):
            raise MemoryError(f"{count} blocks needed, {len(self.free_blocks)} free")
""",
            "        count = min(count, len(self.free_blocks))\n",
        ),
    ),
    Mutant(
        "keeps_what_it_hands_out",
        "check_sequences_get_blocks_of_their_own",
        "blocks stay in the free list",
        (
            "        self.block_tables[name] = [self.free_blocks.pop() for _ in range(count)]\n",
            "        self.block_tables[name] = self.free_blocks[:count]\n",
        ),
    ),
    Mutant(
        "reads_the_rest_of_the_block",
        "check_a_position_that_is_not_there_is_refused",
        "checks the blocks and not the tokens",
        (
            "        if not 0 <= position < self.num_tokens[name]:\n",
            "        if not 0 <= position < len(self.block_tables[name]) * self.block_size:\n",
        ),
    ),
    Mutant(
        "replaces_a_table",
        "check_a_name_is_used_once",
        "a second sequence of the same name loses the blocks of the first",
        (
            """\
        if name in self.block_tables:
            raise ValueError(f"{name!r} already has blocks")
""",
            "",
        ),
    ),
    Mutant(
        "slot_forgets_the_block_size",
        "check_a_position_has_a_slot",
        "the block id is taken for the slot of its first token",
        (
            "        return block * self.block_size + position % self.block_size\n",
            "        return block + position % self.block_size\n",
        ),
    ),
    Mutant(
        "tables_stay",
        "check_freed_blocks_serve_others",
        "a freed sequence keeps its table",
        (
            """\
        self.free_blocks += self.block_tables.pop(name)
        del self.num_tokens[name]
""",
            "        self.free_blocks += self.block_tables[name]\n",
        ),
    ),
)
