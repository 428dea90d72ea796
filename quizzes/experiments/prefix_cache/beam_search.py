from random import Random
from typing import Literal

from engine.frontend.block_space_manager import BlockSpaceManager
from quizzes.experiments import Context, Result, arg, experiment

Parents = Literal["independent", "one_parent", "random"]


@experiment("E09")
def beam_search(
    ctx: Context,
    beams: int = arg(4, 1, 32),
    prompt: int = arg(100, 1, 4000),
    generated: int = arg(50, 0, 400),
    block_size: int = arg(16, 1, 128),
    parents: Parents = "independent",
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Run beam search over forked block tables and count shared blocks and copies (block manager of vLLM 0.6).

    Each step forks the surviving beams, drops the rest and appends a token to each. parents: which beams the next ones
    descend from: independent (each from itself), one_parent (all from the best) or random.

    Returns:
        Blocks and tokens for all beams.
        at_fork [blocks]
        copies [blocks]: Copied on write, the whole search.
        first_step_copies, at_end [blocks]
        unshared [blocks]: Beams with tables of their own.
        saved_blocks [blocks]: unshared - at_end.
        saved [share]
        saved_at_fork [blocks]: Additional blocks that the prompt alone would need without sharing.
        slots_at_end [tokens]: Token slots of the blocks in use at the end.
    """
    manager = BlockSpaceManager(beams * ((prompt + generated) // block_size + 2) + beams, 0, block_size)
    live = [(0, beam) for beam in range(beams)]
    manager.allocate(live[0], prompt)
    for beam in live[1:]:
        manager.fork(live[0], beam)
    at_fork, first = manager.num_used_blocks, 0
    rng = Random(seed)
    for step in range(1, generated + 1):
        if parents != "independent" and step > 1:
            live = _descend(manager, live, _parents(parents, beams, rng), step)
        for beam in live:
            manager.append_slot(beam)
        first = manager.num_copies if step == 1 else first
    at_end = manager.num_used_blocks
    unshared = beams * -(-(prompt + generated) // block_size)
    return Result(
        at_fork=at_fork,
        copies=manager.num_copies,
        first_step_copies=first,
        at_end=at_end,
        unshared=unshared,
        saved_blocks=unshared - at_end,
        saved=1 - at_end / unshared,
        saved_at_fork=beams * -(-prompt // block_size) - at_fork,
        slots_at_end=at_end * block_size,
    )


def _parents(kind: Parents, beams: int, rng: Random) -> list[int]:
    return [0] * beams if kind == "one_parent" else [rng.randrange(beams) for _ in range(beams)]


def _descend(
    manager: BlockSpaceManager, live: list[tuple[int, int]], parents: list[int], step: int
) -> list[tuple[int, int]]:
    """Fork the children from their parents, then free the parents."""
    children = [(step, beam) for beam in range(len(live))]
    for child, parent in zip(children, parents, strict=True):
        manager.fork(live[parent], child)
    for beam in live:
        manager.free(beam)
    return children
