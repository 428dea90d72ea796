"""An engine core in a process of its own: HTTP, JSON and tokenising never hold up a step.

    this process                           python -m engine.exec.core_process 7
    CoreProcess                            while there is work:
      add_request, abort  -- messages -->      handle the messages that have come
      step()              <-- outputs ---      step(); send its outputs

The child does not wait for this process between two steps; without work it waits for a message.
Source: EngineCoreProc in vLLM v1/engine/core.py.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from engine.config import EngineConfig
from engine.core.admission_checks import check_can_run
from engine.core.errors import EngineDeadError, RequestRejected
from engine.core.request import Request
from engine.core.row_output import last_output
from engine.core.sched_output import EngineCoreOutput
from engine.core.stats import StepStats
from engine.engine_core import EngineCore
from engine.exec.multiproc import threads_per_worker
from engine.exec.process import portable
from engine.grammar.vocabulary import TokenSource
from prep_common.child_process import PipeChild, ProcessEnded
from prep_common.memory import collect_rarely
from prep_common.parent_link import serve_pipe
from prep_common.stages import Stages, process_began
from prep_common.text import counted

logger = logging.getLogger(__name__)

DEBUG_POLL_S = 0.05
"""Seconds between two looks of an idle engine with a debug port for commands of the debugger."""


@dataclass(slots=True)
class StepDone:
    """Sent by the child after each step, and after a request that it rejects."""

    outputs: list[EngineCoreOutput]
    stats: StepStats | None
    when: float
    """Value of time.monotonic in the child; processes of one machine share this clock."""
    num_handled: int
    """Messages that the child had handled: outputs of a request come with at least the number of its own."""
    failure: str | None = None


@dataclass(slots=True)
class _Answer:
    value: Any
    is_error: bool


class CoreProcess:
    """The interface of EngineCore for a core in a child process. One thread uses it; `wake` may be called from any."""

    def __init__(self, config: EngineConfig, tokenizer: TokenSource | None = None) -> None:
        """Start the process and wait until it has loaded the model."""
        self._to_build = (config, tokenizer)
        self._adapters: dict[str, str] = {}
        """Folders of the loaded adapters, by key."""
        self._requests: dict[str, tuple[Request, int]] = {}
        """Unfinished requests, each with the number of the message that added it."""
        self._unsent: list[Request] = []
        """Requests for the next message: what they share, such as a long prompt, is sent once."""
        self._late: list[StepDone] = []
        """Steps that ended while `_call` waited for its answer."""
        self._wake_reader, self._wake_writer = Pipe(duplex=False)
        self._is_woken = False
        self._failure: str | None = None
        self.start_seconds: dict[str, float] = {}
        """Seconds of the process's start by stage."""
        self._told_after = 0
        """Number of the message that aborted the last requests: the child tells the levels after it."""
        self.last_step: StepDone | None = None
        """The step that the last call of `step` returned; None if it returned without one."""
        self.is_asleep = False
        self.config = self._start()

    def _start(self) -> EngineConfig:
        """Start the child; return the configuration with all settings resolved.

        One core is left to this process, as vLLM does. Two cores, 128 streams: with prompts of 64 tokens and answers of
        256, one thread makes 8,751 tokens/s and two make 8,290; with 128 to 256 and 64 to 128, 4,752 and 5,532.
        """
        threads = threads_per_worker(self._to_build[0].parallel.world_size, num_reserved=1)
        self._child = PipeChild(
            "engine.exec.core_process",
            name="the engine's process",
            environment={"OMP_NUM_THREADS": str(threads)},
        )
        self._num_sent = 0
        try:
            self._child.write(self._to_build)
            started = self._child.read()
            if isinstance(started, Exception):
                raise started
        except BaseException:
            self._child.kill()
            raise
        config: EngineConfig
        config, description, self.start_seconds = started
        logger.info("%s", description)
        return config

    def sleep(self) -> None:
        """End the process, which gives all its memory back, until `wake_up`. Raises ValueError with requests."""
        self.check_alive()
        if self._requests:
            raise ValueError(
                f"the engine cannot sleep with {counted(len(self._requests), 'unfinished request')}"
            )
        if not self.is_asleep:
            self.is_asleep = True
            self._child.write(None)
            self._child.close()
            self._late.clear()
            self._told_after = 0

    def wake_up(self) -> None:
        """Start a process as the last one was, with its adapters. The prefix cache is empty."""
        if self.is_asleep:
            self._start()
            self.is_asleep = False
            for key, folder in self._adapters.items():
                self._call("load_lora", key, folder)

    @classmethod
    def create(cls, config: EngineConfig, tokenizer: TokenSource | None = None) -> CoreProcess:
        return cls(config, tokenizer)

    @property
    def pid(self) -> int:
        return self._child.pid

    def add_request(self, request: Request) -> None:
        """Queue a request, or raise RequestRejected if it could never finish."""
        self.check_alive()
        if request.request_id in self._requests:
            raise RequestRejected(request.request_id, "duplicate_id", "it is unfinished; use another id")
        check_can_run(request, self.config.scheduler, self.config.cache)
        self._check_awake()
        self._unsent.append(request)
        self._requests[request.request_id] = (request, self._num_sent + 1)

    def abort(self, request_ids: Iterable[str]) -> list[EngineCoreOutput]:
        """End requests now. Return the last output of each unfinished one; ignore other ids."""
        known = [request_id for request_id in request_ids if request_id in self._requests]
        if known and self._failure is None:
            self._send("abort", known)
            self._told_after = self._num_sent
        ended = [self._requests.pop(request_id)[0] for request_id in known]
        return [
            EngineCoreOutput(request.request_id, [], finish_reason="abort", events=request.events)
            for request in ended
        ]

    def has_unfinished(self) -> bool:
        """Whether `step` has something to wait for; False for a dead engine."""
        return self._failure is None and bool(self._requests or self._late or self._told_after)

    @property
    def has_transfers(self) -> bool:
        """False: KV connectors need the core in this process."""
        return False

    def step(self) -> list[EngineCoreOutput]:
        """Wait for a step of the child, or for `wake`; return the step's outputs."""
        self.check_alive()
        self.last_step = None
        self._send_requests()
        if self._late:
            return self._apply(self._late.pop(0))
        ready = wait([self._child.connection, self._wake_reader])
        if self._wake_reader in ready:
            self._wake_reader.recv_bytes()
            self._is_woken = False
        if self._child.connection not in ready:
            return []
        try:
            return self._apply(self._child.read())
        except ProcessEnded as ended:
            return self._lose(str(ended))

    def wake(self) -> None:
        """Let a `step` that waits return now. Callable from any thread."""
        if not self._is_woken:  # one message is enough: an idle engine reads none
            self._is_woken = True
            self._wake_writer.send_bytes(b"w")

    def wait_for_end(self) -> None:
        """Wait until the present process has ended, wanted or not. Callable from any thread."""
        self._child.exit_code(timeout=None)

    def check_process(self) -> None:
        """Raise EngineDeadError if the process is gone though no request ran; otherwise `step` finds that out."""
        if not (self.is_dead or self.is_asleep or self._requests or self._child.is_running):
            self._lose(str(self._child.ended()))
            self.check_alive()

    def kill(self) -> None:
        """Kill the child; the thread that uses this object finds it gone. Callable from any thread."""
        self._child.send_signal(signal.SIGKILL)

    def load_lora(self, key: str, folder: str) -> None:
        """Load an adapter, or raise LoRAError."""
        self._call("load_lora", key, folder)
        self._adapters[key] = folder

    def unload_lora(self, key: str) -> None:
        """Unload an adapter as soon as no unfinished request uses it."""
        self._call("unload_lora", key)
        self._adapters.pop(key, None)

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache. Return False, and change nothing, while any request holds blocks."""
        return bool(self._call("reset_prefix_cache"))

    @property
    def is_dead(self) -> bool:
        return self._failure is not None

    def check_alive(self) -> None:
        """Raise EngineDeadError if the engine, or its process, is gone."""
        if self._failure is not None:
            raise EngineDeadError(f"the engine is dead ({self._failure}); create a new one to continue")

    def shutdown(self) -> None:
        """End the process."""
        if self._failure is None:
            self._failure = "shutdown() was called"
            try:
                if not self.is_asleep:
                    self._child.write(None)
            except ProcessEnded:
                logger.debug("the engine's process was gone already")
        self._child.close()

    def _check_awake(self) -> None:
        if self.is_asleep:
            raise ValueError("the engine sleeps; wake it up first")

    def _send_requests(self) -> None:
        if self._unsent:
            requests, self._unsent = self._unsent, []
            self._send("add", requests)

    def _send(self, kind: str, *content: Any) -> None:
        self._check_awake()
        self._send_requests()
        try:
            self._child.write((kind, *content))
        except ProcessEnded as ended:
            self._lose(str(ended))
            self.check_alive()
        self._num_sent += 1

    def _call(self, method: str, *args: Any) -> Any:
        """Call a method of the core between two steps."""
        self.check_alive()
        self._send("call", method, args)
        try:
            while isinstance(message := self._child.read(), StepDone):
                self._late.append(message)
        except ProcessEnded as ended:
            self._lose(str(ended))
            self.check_alive()
        if message.is_error:
            raise message.value
        return message.value

    def _apply(self, done: StepDone) -> list[EngineCoreOutput]:
        """Return the outputs of unfinished requests, and none of an aborted one whose id is used again."""
        self.last_step = done
        if done.num_handled >= self._told_after:
            self._told_after = 0
        outputs = []
        for output in done.outputs:
            request, added = self._requests.get(output.request_id, (None, 0))
            if request is not None and added <= done.num_handled:
                outputs.append(output)
                if output.finish_reason is not None:
                    del self._requests[output.request_id]
        return outputs if done.failure is None else outputs + self._lose(done.failure)

    def _lose(self, why: str) -> list[EngineCoreOutput]:
        """Mark the engine as dead; return an error output for every unfinished request."""
        self._failure = why
        logger.error("%s", why)
        self._child.kill()
        lost = [last_output(request, error=why) for request, _ in self._requests.values()]
        self._requests.clear()
        self._late.clear()
        self._told_after = 0
        return lost


# In the child


class CoreServer:
    """The child's loop: messages, then a step, as long as there is work."""

    def __init__(self, connection: Connection, core: EngineCore) -> None:
        self.connection, self.core = connection, core
        self.num_handled = 0
        self._last_step = -1
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        Thread(target=self._receive, name="prep-inbox", daemon=True).start()

    def _receive(self) -> None:
        """Take messages off the pipe at once: two processes that both send into a full pipe wait for ever."""
        try:
            with suppress(EOFError, OSError):
                while True:
                    self._inbox.put(self.connection.recv())
        finally:
            self._inbox.put(None)

    def run(self) -> None:
        """Serve until the parent sends None or hangs up."""
        while True:
            with suppress(Empty):
                while (message := self._next_message()) is not None:
                    getattr(self, f"_{message[0]}")(*message[1:])
                    self.num_handled += 1
                    if message[0] == "abort" and not self.core.has_unfinished():
                        self._tell([], self.core.levels())  # no step follows that would
                self.core.shutdown()
                return
            if self.core.has_unfinished():
                outputs = self.core.step()
                failure = None
                if self.core.is_dead:
                    failure = next((output.error for output in outputs if output.error), "the engine failed")
                stats = self.core.scheduler.stats
                if outputs or failure or stats.step != self._last_step:  # a paused debugger runs no step
                    self._last_step = stats.step
                    self._tell(outputs, stats, failure)

    def _next_message(self) -> Any:
        """Return a message; wait for one if the core has nothing to do. Raises Empty without one."""
        if self.core.has_unfinished():
            return self._inbox.get_nowait()
        return self._inbox.get(timeout=None if self.core.debug is None else DEBUG_POLL_S)

    def _add(self, requests: list[Request]) -> None:
        for request in requests:
            try:
                self.core.add_request(request)
            except ValueError as error:
                self.num_handled += 1  # its own message is handled when its output is sent
                self._tell([last_output(request, error=str(error))], None)
                self.num_handled -= 1

    def _abort(self, request_ids: list[str]) -> None:
        self.core.abort(request_ids)  # the parent has returned their last outputs

    def _call(self, method: str, args: tuple[Any, ...]) -> None:
        try:
            answer = _Answer(getattr(self.core, method)(*args), False)
        except Exception as error:
            answer = _Answer(portable(error), True)
        self.connection.send(answer)

    def _tell(
        self, outputs: list[EngineCoreOutput], stats: StepStats | None, failure: str | None = None
    ) -> None:
        self.connection.send(StepDone(outputs, stats, time.monotonic(), self.num_handled, failure))


def serve(connection: Connection) -> None:
    """Build the core that the first message describes, and serve it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # systemd sends it to all processes; the parent decides
    config, tokenizer = connection.recv()
    stages = Stages(process_began())
    stages.end("engine's imports")
    try:
        core = EngineCore.create(config, tokenizer)
    except Exception as error:
        connection.send(portable(error))
        return
    description = core.executor.collective_rpc("describe")[0]
    collect_rarely()  # many requests of one client are hundreds of thousands of objects here, too
    connection.send((core.config, description, stages.seconds | core.start_seconds))
    CoreServer(connection, core).run()


if __name__ == "__main__":
    # Run as a module of its own, this file is __main__: import it under its real name for pickles.
    from engine.exec.core_process import serve as _serve

    serve_pipe(_serve)
