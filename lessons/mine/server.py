"""The server of `prep serve` (engine/server) with the learner's admission control at its door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from engine.async_llm import AsyncLLM
from engine.config import EngineArgs
from engine.server import run
from engine.server.admission import Admission
from engine.server.errors import ApiError
from engine.server.listen import listen


class Door(Admission):
    """Asks the learner's piece who runs, waits or is rejected (exercise 15.1)."""

    def __init__(self, piece: Any, max_running: int) -> None:
        super().__init__(max_running, None)
        self.piece = piece
        self._ids = (f"request-{number}" for number in count())
        self._turns: dict[str, asyncio.Event] = {}

    @asynccontextmanager
    async def enter(self, num_completions: int) -> AsyncIterator[None]:
        """Wait for the turn of a request, and pass the slot on at its end, whatever happens."""
        self.check(num_completions)
        request_id = next(self._ids)
        verdict = self.piece.offer(request_id)
        if verdict == "reject":
            raise ApiError(429, "the queue is full; try again later", retry_after_s=1)
        turn = self._turns[request_id] = asyncio.Event()
        if verdict == "run":
            turn.set()
        self.in_flight += num_completions
        is_finished = False
        try:
            await turn.wait()
            yield
            is_finished = True
        finally:
            self.in_flight -= num_completions
            del self._turns[request_id]
            following = self.piece.finish(request_id) if is_finished else self.piece.abort(request_id)
            if following is not None:
                self._turns[following].set()


@asynccontextmanager
async def serving(llm: AsyncLLM, piece: Any, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve in this event loop while the context is open; yield the address. Port 0 takes a free one."""
    with listen(host, port) as listener:
        door = Door(piece, llm.llm_engine.engine_core.config.scheduler.max_num_seqs)
        args = run.ServerArgs(stats_interval_s=0)
        async with run.running("shop", llm, listener, args, door):
            yield f"http://{host}:{listener.getsockname()[1]}"


def serve(
    llm_args: dict[str, Any],
    admission_class: Any,
    host: str = "127.0.0.1",
    port: int = 8000,
    max_waiting: int = 64,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until Ctrl-C. As many requests run as the engine has rows (max_num_seqs), max_waiting wait.

    ready: called once the server listens. Raises OSError if it cannot, before the model is loaded.
    """

    async def until_signal(listener: Any, llm: AsyncLLM) -> None:
        max_running = llm.llm_engine.engine_core.config.scheduler.max_num_seqs
        door = Door(admission_class(max_running, max_waiting), max_running)
        async with run.running("shop", llm, listener, run.ServerArgs(), door) as server:
            ready()
            await server.ended

    with listen(host, port) as listener, AsyncLLM(EngineArgs.create(**llm_args)) as llm:
        asyncio.run(until_signal(listener, llm))
