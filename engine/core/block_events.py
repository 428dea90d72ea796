"""Attach several listeners to a block pool, which calls one.

pool.on_event    None          no listener: one comparison
                 listener      the only one, called directly
                 FanOut        each in turn, in the order in which they were added
"""

from __future__ import annotations

from typing import Protocol

from engine.core.blocks import Block, BlockEvent, OnBlockEvent


class Observable(Protocol):
    """A BlockPool, or an object that announces its changes in the same way."""

    on_event: OnBlockEvent | None


class FanOut:
    """Calls every listener."""

    def __init__(self, listeners: tuple[OnBlockEvent, ...]) -> None:
        self.listeners = listeners

    def __call__(self, kind: BlockEvent, block: Block, request_id: str | None) -> None:
        for listener in self.listeners:
            listener(kind, block, request_id)


def add_listener(pool: Observable, listener: OnBlockEvent) -> None:
    """Call `listener` for all further events of the pool."""
    _set(pool, (*_listeners(pool), listener))


def remove_listener(pool: Observable, listener: OnBlockEvent) -> None:
    """Stop calling `listener`. Does nothing if it was not added."""
    _set(pool, tuple(each for each in _listeners(pool) if each != listener))


def _listeners(pool: Observable) -> tuple[OnBlockEvent, ...]:
    if pool.on_event is None:
        return ()
    return pool.on_event.listeners if isinstance(pool.on_event, FanOut) else (pool.on_event,)


def _set(pool: Observable, listeners: tuple[OnBlockEvent, ...]) -> None:
    pool.on_event = FanOut(listeners) if len(listeners) > 1 else next(iter(listeners), None)
