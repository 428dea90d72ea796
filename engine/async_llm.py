"""Many clients on one engine: each awaits its own stream while one thread steps for all.

    client tasks          generate() ----- commands ----->  engine thread
    (event loop)                                            execute commands; step(); deliver outputs
                          OutputStream <--- outputs -----   …

By default the engine runs in a thread, not in a process: torch and the tokenizer release the interpreter lock while
they work, outputs need no serialising, and a debugger sees everything. The price is a fraction of a step's time when
clients keep the interpreter busy; a server pays it with a process (`own_process`, engine/exec/core_process.py).
Source of the interface: vLLM v1/engine/async_llm.py.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any, Literal, Self, TypeVar

from engine.config import EngineArgs
from engine.core.errors import EngineDeadError
from engine.engine_core import EngineCore
from engine.exec.core_process import CoreProcess
from engine.frontend.input_processor import InvalidRequestError, Prompt
from engine.frontend.llm_engine import LLMEngine
from engine.frontend.parallel_sampling import SubmittedRequest
from engine.frontend.tokenizer import Tokenizer
from engine.frontend.turns import BetweenSteps
from engine.lora.request import LoRARequest
from engine.outputs import RequestOutput
from engine.sampling_params import RequestOutputKind, SamplingParams, list_of
from prep_common.text import shown

logger = logging.getLogger(__name__)

POLL_S = 0.02
"""Seconds between two looks of `sleep` for the end of the requests."""
SHUTDOWN_S = 5.0
"""Time for an engine's process to finish its step; one that is stopped or stuck is killed then."""

Result = TypeVar("Result")


class AsyncLLM:
    """An engine for `async` code.

        llm = AsyncLLM(EngineArgs(model="shop"))
        async for output in llm.generate("Hello", SamplingParams(max_tokens=20)):
            print(output.outputs[0].text)

    Prompts are tokenised in the caller's task, so a wrong request raises at once.
    """

    def __init__(self, args: EngineArgs, *, own_process: bool = False) -> None:
        """own_process: run the engine core in a process of its own, so that clients never hold up a step."""
        self.llm_engine = LLMEngine.from_args(args, own_process=own_process)
        self._request_ids = (f"request-{number}" for number in count())
        self._commands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        """Functions that the engine thread runs between two steps; None ends it."""
        self._between = BetweenSteps(self.llm_engine.engine_core.config.scheduler.max_num_seqs)
        self._lock = threading.Lock()
        """Orders "a client starts to wait" and "the engine ends", so that no client waits for a dead engine."""
        self._streams: dict[str, OutputStream] = {}
        self._calls: set[Future[Any]] = set()
        self._end: EngineDeadError | None = None
        if isinstance(core := self.llm_engine.engine_core, EngineCore) and core.debug is not None:
            core.debug.control.on_command = lambda: self._command(lambda: None)
        self._thread = threading.Thread(target=self._run, name="prep-engine", daemon=True)
        self._thread.start()
        self._watch_process()

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> Self:
        return cls(args)

    # For clients, from any task or thread

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete a prompt and yield its outputs, of the kind `output_kind`.

        Leaving the loop or cancelling the task aborts the request: its blocks are free before the next step, those of
        more than PORTION completions some steps later. Many completions are queued over several steps as well. A slow
        reader delays no other client: outputs it has missed are merged into one.
        """
        request_id = next(self._request_ids) if request_id is None else request_id
        if lora_request is not None and not self.llm_engine.is_loaded(lora_request):
            await self.add_lora(lora_request)
        params = SamplingParams() if sampling_params is None else sampling_params
        submitted = self.llm_engine.input_processor.begin(
            request_id,
            prompt,
            params,
            lora_request=lora_request,
            priority=priority,
            trace_headers=trace_headers,
        )
        stream = OutputStream(asyncio.get_running_loop(), submitted.params.output_kind)
        self._submit(submitted, stream)
        is_finished = False
        try:
            while not is_finished:
                output = await stream.get()
                is_finished = output.finished
                yield output
        finally:
            if not is_finished:
                self._command(partial(self._drop, request_id, stream))

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Abort requests: their streams end with the tokens so far and finish_reason "abort".

        A request whose completions are not all queued yet ends with those that are.
        """
        request_ids = [request_id] if isinstance(request_id, str) else list_of(request_id)
        if request_ids is None or not all(isinstance(name, str) for name in request_ids):
            # Here: in the engine's thread an error would end the engine for all clients.
            raise InvalidRequestError(
                f"request_id must be the id of a request or a list of ids, got {shown(request_id)}"
            )
        self._command(partial(self._abort, request_ids))

    async def sleep(self, level: int = 1, mode: Literal["abort", "wait"] = "abort") -> None:
        """End the engine's process, which gives its memory back, after aborting its requests or waiting for them.

        The levels of vLLM, 1 and 2, are the same here: weights on the CPU cannot be moved to the CPU.
        """
        if level not in (1, 2) or mode not in ("abort", "wait"):
            raise InvalidRequestError(
                f"level must be 1 or 2 and mode abort or wait, got {level!r} and {mode!r}"
            )
        self.llm_engine.need_process()  # before any request is aborted
        while self._streams:
            if mode == "abort":
                await self.abort(list(self._streams))
            await asyncio.sleep(POLL_S)
        await self._call(self.llm_engine.sleep)

    async def wake_up(self) -> None:
        """Load the model again; seconds."""
        await self._call(self.llm_engine.wake_up)
        self._watch_process()

    @property
    def is_sleeping(self) -> bool:
        return self.llm_engine.is_asleep

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load an adapter while requests run. Return False if it is loaded already."""
        return await self._call(partial(self.llm_engine.add_lora, lora_request))

    async def load_lora_adapter(
        self, lora_name: str, lora_path: str, *, load_inplace: bool = False
    ) -> LoRARequest:
        """See `LLM.load_lora_adapter`."""
        load = self.llm_engine.load_lora_adapter
        return await self._call(partial(load, lora_name, lora_path, load_inplace=load_inplace))

    async def unload_lora_adapter(self, lora_name: str) -> None:
        """Unload an adapter. Unfinished requests still finish with it."""
        await self._call(partial(self.llm_engine.remove_lora, lora_name))

    async def list_lora_adapters(self) -> list[LoRARequest]:
        """Return the loaded adapters, oldest first."""
        return await self._call(self.llm_engine.list_loras)

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache. Return False, and change nothing, while requests hold blocks."""
        return await self._call(self.llm_engine.reset_prefix_cache)

    async def check_health(self) -> None:
        """Raise EngineDeadError if the engine has stopped."""
        self._check_alive()

    @property
    def errored(self) -> bool:
        return self._end is not None

    @property
    def is_running(self) -> bool:
        return self._end is None

    def get_tokenizer(self) -> Tokenizer | None:
        return self.llm_engine.tokenizer

    def shutdown(self) -> None:
        """Stop after the current step; waiting clients get EngineDeadError. Calling it again does nothing."""
        self._command(None)
        self._thread.join(SHUTDOWN_S if self.llm_engine.has_own_process else None)
        if self._thread.is_alive():
            logger.warning("the engine's process did not stop within %g s; it is killed", SHUTDOWN_S)
            self.llm_engine.kill()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()

    def _command(self, command: Callable[[], None] | None) -> None:
        self._commands.put(command)
        self.llm_engine.wake()

    def _submit(self, submitted: SubmittedRequest, stream: OutputStream) -> None:
        with self._lock:
            self._check_alive()
            if (request_id := submitted.request_id) in self._streams:
                raise InvalidRequestError(
                    f"a request with id {request_id!r} is not finished yet; use another id"
                )
            self._streams[request_id] = stream
            self._command(lambda: self._between.append(self._add(submitted, stream)))

    async def _call(self, function: Callable[[], Result]) -> Result:
        """Run a function in the engine thread, between two steps."""
        future: Future[Result] = Future()

        def run() -> Iterator[int]:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except Exception as error:
                    future.set_exception(error)
            yield 0

        with self._lock:
            self._check_alive()
            self._calls.add(future)
            self._command(lambda: self._between.append(run()))
        future.add_done_callback(self._calls.discard)
        return await asyncio.wrap_future(future)

    def _watch_process(self) -> None:
        """Tell the engine thread when the engine's process ends: without requests it waits for commands alone."""
        if isinstance(core := self.llm_engine.engine_core, CoreProcess):

            def watch() -> None:
                core.wait_for_end()
                self._command(core.check_process)

            threading.Thread(target=watch, name="prep-watch", daemon=True).start()

    def _check_alive(self) -> None:
        if self._end is not None:
            raise _copy(self._end)

    # The engine thread

    def _run(self) -> None:
        end = EngineDeadError("the engine was shut down")
        try:
            while self._execute_commands():
                self._between.run()
                if is_busy := self.llm_engine.has_unfinished():
                    self._deliver(self.llm_engine.step())
                if not is_busy or self.llm_engine.ran_step:
                    self._between.refill()
        except EngineDeadError as error:
            end = error
        except Exception as error:
            logger.exception("the engine's thread failed")
            end = EngineDeadError(f"the engine's thread failed: {type(error).__name__}: {error}")
            end.__cause__ = error
        self._close(end)
        self.llm_engine.shutdown()

    def _execute_commands(self) -> bool:
        """Run the commands since the last step; without work, wait for one. Return False to stop."""
        is_idle = not (self._between or self.llm_engine.has_unfinished())
        while is_idle or not self._commands.empty():
            if (command := self._commands.get()) is None:
                return False
            command()
            is_idle = False
        return True

    def _add(self, submitted: SubmittedRequest, stream: OutputStream) -> Iterator[int]:
        """Queue a request, unless its client has left."""
        if self._streams.get(submitted.request_id) is not stream:
            return
        try:
            yield from self.llm_engine.add_in_parts(submitted)
        except ValueError as error:  # the core rejects this request; the others go on
            if self._streams.get(submitted.request_id) is stream:
                del self._streams[submitted.request_id]
                stream.fail(error)

    def _abort(self, request_ids: list[str]) -> None:
        """Abort requests; those that wait to be queued after that."""
        processor = self.llm_engine.output_processor
        self._between.abort(
            self._abort_parts([request_id for request_id in request_ids if request_id in processor])
        )
        if later := [
            request_id
            for request_id in request_ids
            if request_id not in processor and request_id in self._streams
        ]:
            self._between.append(self._abort_parts(later))

    def _abort_parts(self, request_ids: list[str]) -> Iterator[int]:
        for cost, outputs in self.llm_engine.abort_in_parts(request_ids):
            self._deliver(outputs)
            yield cost

    def _drop(self, request_id: str, stream: OutputStream) -> None:
        """Abort the request of a client that left, unless a new client uses its id by now."""
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self._between.abort(self._abort_parts([request_id]))

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        to_wake: dict[asyncio.AbstractEventLoop, list[OutputStream]] = {}
        for output in outputs:
            if (stream := self._streams.get(output.request_id)) is not None:
                if output.finished:
                    del self._streams[output.request_id]
                if stream.loop.is_closed():
                    self._drop(output.request_id, stream)
                elif stream.put(output):
                    to_wake.setdefault(stream.loop, []).append(stream)
        for loop, streams in to_wake.items():
            _wake(loop, streams)

    def _close(self, end: EngineDeadError) -> None:
        """Mark the engine as ended and fail all streams and calls."""
        with self._lock:
            self._end = end
        for stream in self._streams.values():
            stream.fail(_copy(end))
        for call in list(self._calls):
            if call.set_running_or_notify_cancel():
                call.set_exception(_copy(end))


class OutputStream:
    """Outputs of one request, passed from the engine thread to the client's event loop.

    It holds at most one output: one that the client has not fetched is merged with the next.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, kind: RequestOutputKind) -> None:
        self.loop, self._is_delta = loop, kind is RequestOutputKind.DELTA
        self._lock = threading.Lock()
        self._ready = asyncio.Event()
        self._output: RequestOutput | None = None
        self._error: Exception | None = None

    def put(self, output: RequestOutput) -> bool:
        """Add an output, from the engine thread. Return whether the client must be woken: it has read all others."""
        with self._lock:
            earlier = self._output
            self._output = earlier.with_delta(output) if earlier is not None and self._is_delta else output
        return earlier is None

    def wake(self) -> None:
        """Let `get` look again; in the client's event loop."""
        self._ready.set()

    def fail(self, error: Exception) -> None:
        """Raise an error in the client after it has read the last output; from the engine thread."""
        with self._lock:
            self._error = error
        _wake(self.loop, [self])

    async def get(self) -> RequestOutput:
        """Wait for the next output, from the client."""
        while True:
            await self._ready.wait()
            with self._lock:
                output, self._output = self._output, None
                if output is not None:
                    return output
                if self._error is not None:
                    raise self._error
                self._ready.clear()


def _wake(loop: asyncio.AbstractEventLoop, streams: list[OutputStream]) -> None:
    """Wake the clients of one event loop, all at once: each call from another thread costs a system call."""

    def wake() -> None:
        for stream in streams:
            stream.wake()

    with suppress(RuntimeError):  # the loop is closed; its requests are dropped at their next output
        loop.call_soon_threadsafe(wake)


def _copy(end: EngineDeadError) -> EngineDeadError:
    """Copy the error for each client: an exception collects the traceback of each raise."""
    copy = EngineDeadError(str(end))
    copy.__cause__ = end.__cause__
    return copy
