"""Uses of the block manager."""

from types import ModuleType
from typing import Any


def append_to_allocated(given: ModuleType, *, block_size: int = 4, tokens: int = 2) -> dict[str, Any]:
    """Allocate room, then store tokens in the first block of it."""
    manager = given.BlockManager(8, block_size)
    block = manager.allocate(tokens)[0]
    accepted = block.append(list(range(tokens)))
    return {"accepted": accepted, "stored": len(block.tokens)}


def append_twice(given: ModuleType, *, block_size: int = 4) -> dict[str, Any]:
    """Store one token, and then another, in a block that is free."""
    block = given.Block(0, block_size)
    return {"first": block.append([1]), "second": block.append([2]), "stored": len(block.tokens)}


def ref_count_after_allocate(given: ModuleType, *, num_tokens: int = 10, block_size: int = 4) -> list[int]:
    """The counts of blocks that one sequence has just been given."""
    return [block.ref_count for block in given.BlockManager(16, block_size).allocate(num_tokens)]


def shared_block_after_one_free(given: ModuleType, *, owners: int = 3) -> dict[str, Any]:
    """Several sequences hold the same block; one of them ends."""
    manager = given.BlockManager(4, 16)
    block = manager.allocate(16)[0]
    tables = [[block] for _ in range(owners)]
    manager.free(tables[0])
    return {"is_free": block.is_free, "still_held_by": owners - 1}


def free_twice(given: ModuleType, *, num_blocks: int = 4) -> dict[str, Any]:
    """A sequence is freed, its blocks go to another one, and the first is freed again by mistake."""
    manager = given.BlockManager(num_blocks, 16)
    first = manager.allocate(16 * num_blocks)
    manager.free(first)
    second = manager.allocate(16 * num_blocks)
    manager.free(first)
    third = manager.allocate(16 * num_blocks)
    owned_twice = len({block.block_id for block in second} & {block.block_id for block in third or []})
    return {"blocks_with_two_owners": owned_twice}


def grow(given: ModuleType, *, block_size: int = 4, prompt: int = 4, generated: int = 1) -> dict[str, Any]:
    """A sequence fills its blocks and generates on: is there a way to give it the next block?"""
    manager = given.BlockManager(8, block_size)
    blocks = manager.allocate(prompt)
    ways = [name for name in ("grow", "append_slot", "extend", "allocate_slots") if hasattr(manager, name)]
    room = len(blocks) * block_size - prompt
    return {"ways": len(ways), "room_in_last_block": room, "tokens_without_room": max(0, generated - room)}


def blocks_looked_at(given: ModuleType, *, num_blocks: int = 1000, num_tokens: int = 16) -> int:
    """Return the number of blocks that an allocation looks at."""
    manager = given.BlockManager(num_blocks, 16)
    looked = 0

    class Counting(list):
        def __iter__(self) -> Any:
            nonlocal looked
            for item in list.__iter__(self):
                looked += 1
                yield item

    manager.blocks = Counting(manager.blocks)
    manager.allocate(num_tokens)
    return looked


def allocate_nonsense(given: ModuleType, *, num_tokens: int = -20) -> int:
    """Blocks that a negative number of tokens is given."""
    return len(given.BlockManager(8, 4).allocate(num_tokens))
