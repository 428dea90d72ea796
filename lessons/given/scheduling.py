"""Types of lessons 9 and 10: what a scheduler sees and decides."""

from __future__ import annotations

from typing import Any, NamedTuple


class Seq(NamedTuple):
    """A request as the scheduler sees it."""

    id: str
    known: int
    """Tokens known: the prompt and those generated."""
    computed: int
    """Tokens whose KV exists. Of a waiting request: tokens that the prefix cache supplies."""
    blocks: int
    """Blocks held. Of a waiting request: cached blocks that it would share without using a free one."""


class Plan(NamedTuple):
    """Plan of one step: the tokens that it computes."""

    rows: list[tuple[str, int]]
    """(id, tokens computed in this step). A waiting id in a row is admitted."""
    preempted: list[str]
    """Running ids that free all their blocks and wait again, before the rows run."""


def schedule_plain(
    scheduler: Any, running: list[tuple[Any, ...]], waiting: list[tuple[Any, ...]], num_free_blocks: int
) -> Any:
    """Call `scheduler.schedule` with requests given as plain tuples: the checker's process sends only builtin types."""
    return scheduler.schedule([Seq(*seq) for seq in running], [Seq(*seq) for seq in waiting], num_free_blocks)


def choose_plain(choose: Any, running: list[tuple[Any, ...]], need: int, free: int) -> Any:
    """Call `choose(running, need, free)` in the same way."""
    return choose([Seq(*seq) for seq in running], need, free)
