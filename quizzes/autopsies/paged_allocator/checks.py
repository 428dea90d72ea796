"""Requirements on the allocator.

PagedAllocator(num_blocks, block_size): allocate(name, num_tokens), slot(name, position),
append(name), free(name)."""

from typing import Any

from quizzes.autopsies.programs import Program, refused


def _allocator(program: Program, num_blocks: int = 8, block_size: int = 4) -> Any:
    return program.PagedAllocator(num_blocks, block_size)


def check_sequences_get_blocks_of_their_own(program: Program) -> None:
    """allocate(name, num_tokens) returns ceil(num_tokens / block_size) block ids that no other sequence has."""
    allocator = _allocator(program)
    first, second = list(allocator.allocate("a", 10)), list(allocator.allocate("b", 8))
    assert (len(first), len(second)) == (3, 2), f"{len(first)} and {len(second)} blocks, wanted 3 and 2"
    assert not set(first) & set(second), f"both got {sorted(set(first) & set(second))}"


def check_too_few_blocks_is_an_error_that_changes_nothing(program: Program) -> None:
    """allocate raises MemoryError if the blocks do not suffice, and hands none out."""
    allocator = _allocator(program, 3)
    with refused(MemoryError, "13 tokens were promised 3 blocks of 4"):
        allocator.allocate("large", 13)
    assert len(allocator.allocate("fits", 12)) == 3, "the refused allocation kept blocks"


def check_a_position_has_a_slot(program: Program) -> None:
    """slot(name, position) is block_table[position // block_size] * block_size + position % block_size."""
    allocator = _allocator(program)
    allocator.allocate("other", 3)
    table = list(allocator.allocate("a", 10))
    slots = [allocator.slot("a", position) for position in range(10)]
    assert slots == [table[p // 4] * 4 + p % 4 for p in range(10)], f"slots {slots} for the table {table}"


def check_a_position_that_is_not_there_is_refused(program: Program) -> None:
    """slot raises IndexError beyond the tokens of the sequence: the last block's rest is not its data."""
    allocator = _allocator(program)
    allocator.allocate("a", 6)
    try:
        slot = allocator.slot("a", 6)
    except IndexError:
        return
    raise AssertionError(f"position 6 of 6 tokens has slot {slot}")


def check_a_block_is_taken_when_the_last_is_full(program: Program) -> None:
    """append(name) returns the slot of the next token, and takes a block only when the last one is full."""
    allocator = _allocator(program, 3)
    table = list(allocator.allocate("a", 3))
    slots = [allocator.append("a") for _ in range(3)]
    assert isinstance(slots[0], int), f"append returned {slots[0]!r}; expected the slot {table[0] * 4 + 3}"
    assert slots[0] == table[0] * 4 + 3, "the 4th token did not go into the rest of the first block"
    assert slots[1] % 4 == 0 and slots[1] // 4 != table[0], "the 5th token did not start a new block"
    assert slots[2] == slots[1] + 1
    assert len(allocator.allocate("b", 4)) == 1, "append took more than one block"
    tight = _allocator(program, 1)
    tight.allocate("a", 3)
    tight.append("a")  # fits into the one block there is


def check_freed_blocks_serve_others(program: Program) -> None:
    """free(name) gives all blocks back, and the name is unknown afterwards (KeyError)."""
    allocator = _allocator(program, 2)
    allocator.allocate("a", 8)
    allocator.free("a")
    assert len(allocator.allocate("b", 8)) == 2
    for use in (lambda: allocator.free("a"), lambda: allocator.slot("a", 0)):
        with refused(KeyError, "a freed sequence can still be used"):
            use()


def check_a_name_is_used_once(program: Program) -> None:
    """allocate of a name that is there raises ValueError and loses nothing."""
    allocator = _allocator(program, 4)
    allocator.allocate("a", 4)
    with refused(ValueError, "the first table of 'a' was replaced, and its block is lost"):
        allocator.allocate("a", 4)
    assert len(allocator.allocate("b", 12)) == 3, "the refused allocation kept a block"


def check_any_work_in_blocks_of_any_size(program: Program) -> None:
    """Whatever is allocated, appended and freed: tokens have slots of their own, and no block is lost."""
    rng = program.rng
    size, num_blocks = rng.choice([1, 2, 3, 5]), rng.randint(9, 12)
    allocator = _allocator(program, num_blocks, size)
    lens = {"first": 1 + 2 * size}
    allocator.allocate("first", 1)
    for _ in range(2 * size):  # while most blocks are free
        allocator.append("first")
    for step in range(30):
        free = num_blocks - sum(-(-length // size) for length in lens.values())
        name, action = f"r{step}", rng.choice(["allocate", "append", "append", "free"])
        if action == "allocate" and 0 < free:
            lens[name] = rng.randint(1, free * size)
            allocator.allocate(name, lens[name])
        elif action == "append" and lens:
            name = rng.choice(list(lens))
            if free or lens[name] % size:
                allocator.append(name)
                lens[name] += 1
        elif lens:
            name = rng.choice(list(lens))
            allocator.free(name)
            del lens[name]
        slots = [allocator.slot(name, position) for name in lens for position in range(lens[name])]
        where = f"step {step}, {action}, blocks of {size}"
        assert len(set(slots)) == len(slots), f"{where}: two tokens share a slot"
        assert all(0 <= slot < num_blocks * size for slot in slots), f"{where}: slots {slots}"
        offsets = [slot % size for slot in slots]
        wanted = [position % size for name in lens for position in range(lens[name])]
        assert offsets == wanted, f"{where}: offsets {offsets}, wanted {wanted}"
    for name in lens:
        allocator.free(name)
    assert len(allocator.allocate("all", num_blocks * size)) == num_blocks, "a block was lost"
