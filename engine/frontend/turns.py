"""Turns of an event loop: long work for one client is done in portions, and other clients are served between them."""

from __future__ import annotations

import asyncio

AT_ONCE = 32
"""Prompts, completions or choices of a request that are handled before other clients have their turn."""


async def let_others_run(number: int) -> None:
    """Let other tasks run once after each AT_ONCE items; `number`: those of a loop, counted from 0."""
    if number % AT_ONCE == AT_ONCE - 1:
        await asyncio.sleep(0)
