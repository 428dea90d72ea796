"""Requirements on a block manager. Names as in the given program, and two new ones: share and grow."""

from typing import Any

from prep_common.sandbox import expose
from quizzes.autopsies.programs import Program, refused

BLOCK_SIZE = 4


def _manager(program: Program, num_blocks: int = 8, block_size: int = BLOCK_SIZE) -> Any:
    return program.BlockManager(num_blocks, block_size)


def _grow(program: Program, manager: Any, table: list[Any], num_tokens: int) -> Any:
    """Let the manager grow a table, which it changes: the table is a list of the guest meanwhile."""
    theirs = program.guest.put(table)
    grown = manager.grow(theirs, num_tokens)
    table[:] = theirs.content()
    return grown


def check_an_allocated_block_takes_tokens(program: Program) -> None:
    """block.append(tokens) stores tokens in an allocated block and returns True."""
    block = _manager(program).allocate(3)[0]
    assert block.append([7, 8, 9]) is True, "append refused tokens although the block is allocated and empty"
    assert block.tokens == [7, 8, 9], f"stored {block.tokens}, wanted [7, 8, 9]"


def check_append_goes_on_until_the_block_is_full(program: Program) -> None:
    """append may be called again until block_size tokens are stored; then it returns False and stores nothing."""
    block = _manager(program).allocate(BLOCK_SIZE)[0]
    taken = [block.append([token]) for token in range(BLOCK_SIZE + 1)]
    assert taken == [True] * BLOCK_SIZE + [False], f"{BLOCK_SIZE + 1} appends of one token returned {taken}"
    assert block.tokens == list(range(BLOCK_SIZE)), f"stored {block.tokens}"


def check_a_reference_is_an_owner(program: Program) -> None:
    """ref_count is 1 after allocate, 2 after share(blocks), and append does not change it."""
    manager = _manager(program)
    blocks = manager.allocate(6)
    assert [b.ref_count for b in blocks] == [1, 1], f"after allocate: {[b.ref_count for b in blocks]}"
    blocks[0].append([1])
    assert blocks[0].ref_count == 1, f"append changed the count to {blocks[0].ref_count}"
    manager.share(blocks)
    assert [b.ref_count for b in blocks] == [2, 2], f"after share: {[b.ref_count for b in blocks]}"


def check_a_shared_block_outlives_its_first_owner(program: Program) -> None:
    """free gives a block back only when its last owner has freed it; its tokens stay until then."""
    manager = _manager(program, 2)
    blocks = manager.allocate(4)
    blocks[0].append([1, 2])
    manager.share(blocks)
    manager.free(blocks)
    assert manager.num_free() == 1, f"{manager.num_free()} of 2 blocks free while one owner is left"
    assert blocks[0].tokens == [1, 2], "the second owner's tokens are gone"
    manager.free(blocks)
    assert manager.num_free() == 2, "the block did not come back after its last owner freed it"


def check_freeing_twice_is_refused(program: Program) -> None:
    """free of a block without an owner raises ValueError, and nothing changes."""
    manager = _manager(program, 2)
    blocks = manager.allocate(4)
    manager.free(blocks)
    with refused(ValueError, "the second free of the same blocks was accepted"):
        manager.free(blocks)
    assert manager.num_free() == 2, f"{manager.num_free()} of 2 blocks free after a refused free"
    ids = [manager.allocate(4)[0].block_id for _ in range(2)]
    assert len(set(ids)) == 2, f"block {ids[0]} was handed out twice"


def check_a_sequence_grows_by_blocks(program: Program) -> None:
    """grow(blocks, num_tokens) adds blocks until the tokens fit and returns True; if not, False, and no change."""
    manager = _manager(program, 3)
    blocks = manager.allocate(4)
    assert _grow(program, manager, blocks, 4) is True and len(blocks) == 1, (
        "grew although 4 tokens fit into one block"
    )
    grown = _grow(program, manager, blocks, 5)
    assert grown is True and len(blocks) == 2, f"{len(blocks)} blocks for 5 tokens, wanted 2"
    assert blocks[1].ref_count == 1, "the new block has no owner"
    assert _grow(program, manager, blocks, 4 * 4) is False, "4 blocks of 3 were promised"
    assert len(blocks) == 2 and manager.num_free() == 1, "a refused grow kept blocks"


def check_allocate_is_all_or_nothing(program: Program) -> None:
    """allocate returns None and takes nothing if the blocks do not suffice; 0 tokens need no block."""
    manager = _manager(program, 2)
    assert manager.allocate(9) is None, "3 blocks of 2 were handed out"
    assert manager.num_free() == 2, "a refused allocation kept blocks"
    assert manager.allocate(0) == [], f"0 tokens gave {manager.allocate(0)}"


def check_nonsense_is_refused(program: Program) -> None:
    """allocate of a negative number of tokens raises ValueError."""
    try:
        given = _manager(program).allocate(-1)
    except ValueError:
        return
    raise AssertionError(f"allocate(-1) returned {given}")


def check_allocation_does_not_search(program: Program) -> None:
    """allocate and num_free work without going through all blocks."""
    manager = _manager(program, 64)

    class NoSearch(list):
        def __iter__(self) -> Any:
            raise AssertionError("went through the list of all blocks")

    manager.blocks = expose(NoSearch(manager.blocks))
    assert len(manager.allocate(10)) == 3
    assert manager.num_free() == 61, f"{manager.num_free()} free, wanted 61"


def check_random_operations_leak_nothing(program: Program) -> None:
    """Whatever is allocated, shared, grown and freed: no block has two sequences by accident, none is lost."""
    rng = program.rng
    size = rng.choice([2, 3, 5, 7])
    manager = _manager(program, 32, size)
    tables: list[list[Any]] = []
    for step in range(200):
        action = rng.choice(["allocate", "share", "grow", "free", "free"])
        if action == "allocate":
            num_tokens, before = rng.randint(1, 9 * size), manager.num_free()
            blocks, needed = manager.allocate(num_tokens), -(-num_tokens // size)
            given = None if blocks is None else len(blocks)
            wanted = needed if needed <= before else None
            assert given == wanted, (
                f"step {step}: {given} blocks of {size} for {num_tokens} tokens, not {wanted}"
            )
            if blocks:
                block = rng.choice(list(blocks))
                taken = [block.append([step] * size), block.append([step])]
                assert taken == [True, False], f"step {step}: appends of {size} and 1 tokens returned {taken}"
                tables.append(list(blocks))
        elif tables and action == "share":
            table = rng.choice(tables)
            manager.share(table)
            tables.append(list(table))
        elif tables and action == "grow":
            table = rng.choice(tables)
            _grow(program, manager, table, len(table) * size + rng.randint(0, 6))
        elif tables:
            manager.free(tables.pop(rng.randrange(len(tables))))
        where, free = f"step {step}, {action}", manager.num_free()
        held = list(dict.fromkeys(block for table in tables for block in table))
        assert len(held) + free == 32, f"{where}: {len(held)} blocks held and {free} free of 32"
        for block in held:
            owners, count = sum(block in table for table in tables), block.ref_count
            assert count == owners, f"{where}: block {block.block_id} has {owners} owners and counts {count}"
