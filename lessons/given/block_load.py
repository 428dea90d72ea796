"""Calls of a block manager in the process that holds it: the checks and the race of the lab block-manager."""

from __future__ import annotations

from random import Random
from time import perf_counter
from typing import Any

BLOCK_SIZE = 16
LOADS = ("decode", "forks", "short requests")


def replay(
    make: Any, num_blocks: int, block_size: int, calls: list[tuple[str, list[Any]]], requests: list[str]
) -> list[tuple[Any, dict[str, list[int]], int]]:
    """Make the calls on a new manager. Returns for each what it returned, or the name of the error that it raised,
    all tables, and num_free."""
    manager = make(num_blocks, block_size)
    found: list[tuple[Any, dict[str, list[int]], int]] = []
    for name, arguments in calls:
        result: Any
        try:
            result = getattr(manager, name)(*arguments)
        except (KeyError, IndexError, MemoryError, ValueError) as error:
            result = type(error).__name__
        tables = {request: list(manager.table(request)) for request in requests}
        found.append((result, tables, manager.num_free))
    return found


def tables_after_a_change(make: Any) -> tuple[list[int], list[int], list[int]]:
    """Return a request's blocks, its table after a caller has changed what `table` returned, and an unknown table."""
    manager = make(8, 4)
    blocks = [*manager.allocate("a", 8), *manager.allocate("a", 9)]
    manager.table("a").append(99)
    return blocks, list(manager.table("a")), list(manager.table("x"))


def seconds_of(make: Any, load: str, seed: int = 0) -> float:
    """Return the seconds that a new manager takes for one of LOADS, or for a mixture drawn by the seed."""
    manager = make(4097, BLOCK_SIZE)
    began = perf_counter()
    if load == "decode":
        decode(manager)
    elif load == "forks":
        forks(manager)
    elif load == "short requests":
        short_requests(manager, Random(0))
    else:
        rng = Random(seed)
        for run in rng.sample([decode, forks, lambda each: short_requests(each, rng)], 3):
            run(manager)
    return perf_counter() - began


def decode(manager: Any) -> None:
    """64 requests with prompts of 256 tokens generate 64 tokens each, one per step."""
    names = [f"d{index}" for index in range(64)]
    for tokens in range(256, 321):
        for name in names:
            manager.allocate(name, tokens)
    for name in names:
        manager.free(name)


def forks(manager: Any) -> None:
    """A prompt of 2,048 tokens forks into 16 samples; each writes 32 tokens."""
    manager.allocate("parent", 2040)
    names = [f"f{index}" for index in range(16)]
    for name in names:
        manager.fork("parent", name)
    for position in range(2040, 2072):
        for name in names:
            manager.allocate(name, position + 1)
            manager.write(name, position)
    for name in ("parent", *names):
        manager.free(name)


def short_requests(manager: Any, rng: Random) -> None:
    """1,500 requests of 1 to 600 tokens come and go; the oldest is freed whenever memory is full."""
    alive: list[str] = []
    for index in range(1500):
        tokens = rng.randint(1, 600)
        while manager.allocate(f"s{index}", tokens) is None:
            manager.free(alive.pop(0))
        alive.append(f"s{index}")
    for name in alive:
        manager.free(name)
