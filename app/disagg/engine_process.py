"""An engine in a process of its own: prompts in and tokens out through a pipe.

The child ignores Ctrl-C, which a terminal sends to everybody: its parent decides. It ends when it is told to, and when
the pipe breaks because the parent is gone, so nothing is left behind either way.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

ENDS_WITHIN_S = 10.0
"""After this a child that was told to stop is killed."""


@dataclass(frozen=True)
class Ask:
    """A request on its way to an engine."""

    name: str
    prompt: list[int]
    max_tokens: int
    kv_transfer_params: dict[str, Any] | None = None


@dataclass(frozen=True)
class News:
    """What a step brought a request."""

    name: str
    token_ids: list[int]
    time_s: float
    """When the step ended: the monotonic clock, which all processes of a machine share."""
    finished: bool = False
    error: str | None = None
    num_cached_tokens: int = 0
    kv_transfer_params: dict[str, Any] | None = None


@dataclass(frozen=True)
class Ready:
    """The engine can take requests."""

    kv_bytes_per_token: int
    block_size: int
    vocab_size: int
    max_model_len: int


@dataclass(frozen=True)
class Totals:
    """The engine's counters, summed over all steps. Answers TOTALS when all transfers have ended."""

    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """The engine could not start, or died."""

    message: str


TOTALS, STOP = "totals", "stop"


class EngineProcess:
    """The parent's side."""

    def __init__(self, engine_args: dict[str, Any]) -> None:
        context = get_context("spawn")  # a fork would inherit the threads of torch, and the other pipes
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=[theirs, engine_args], daemon=True)
        self._process.start()
        theirs.close()

    def send(self, message: Ask | str) -> None:
        self.connection.send(message)

    def receive(self) -> Any:
        """The next message; RuntimeError if the engine failed or its process is gone."""
        try:
            message = self.connection.recv()
        except (EOFError, ConnectionResetError):
            message = Failed("its process has ended")
        if isinstance(message, Failed):
            raise RuntimeError(f"an engine process failed: {message.message}")
        return message

    def stop(self) -> None:
        """End the process, by force if it does not end by itself."""
        try:
            self.connection.send(STOP)
        except OSError:
            pass  # it is gone already
        self._process.join(ENDS_WITHIN_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.connection.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid


def _serve(connection: Connection, engine_args: dict[str, Any]) -> None:
    """The child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        engine = _Engine(connection, engine_args)
        try:
            engine.run()
        finally:
            engine.shutdown()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone
    except Exception as error:
        connection.send(Failed(f"{type(error).__name__}: {error}"))


class _Engine:
    def __init__(self, connection: Connection, engine_args: dict[str, Any]) -> None:
        import torch

        from engine.config import EngineArgs
        from engine.frontend.llm_engine import LLMEngine

        torch.set_num_threads(1)  # two engines share the machine
        self._connection = connection
        self._engine = LLMEngine.from_args(EngineArgs.create(**engine_args))
        self._counters: dict[str, int] = {}
        cache = self._engine.engine_core.executor.worker.runner.kv_cache
        block_size = self._engine.engine_core.config.cache.block_size
        config = self._engine.engine_core.config
        connection.send(
            Ready(
                cache.blocks.shape[1] // block_size,
                block_size,
                config.model.vocab_size,
                config.scheduler.max_model_len,
            )
        )

    def run(self) -> None:
        wants_totals = False
        while True:
            is_busy = self._engine.has_unfinished()
            if wants_totals and not is_busy:
                wants_totals = False
                self._connection.send(Totals(dict(self._counters)))
            while self._connection.poll(0 if is_busy else None):
                message = self._connection.recv()
                if message == STOP:
                    return
                if message == TOTALS:
                    wants_totals = True
                else:
                    self._add(message)
                is_busy = True
            if self._engine.has_unfinished():
                self._step()

    def shutdown(self) -> None:
        self._engine.shutdown()

    def _add(self, ask: Ask) -> None:
        from engine.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            temperature=0.0,
            max_tokens=ask.max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            extra_args=ask.kv_transfer_params and {"kv_transfer_params": ask.kv_transfer_params},
        )
        try:
            self._engine.add(self._engine.input_processor.process(ask.name, ask.prompt, params))
        except ValueError as error:
            self._connection.send(News(ask.name, [], time.monotonic(), True, str(error)))

    def _step(self) -> None:
        from engine.core.stats import TRACED_COUNTERS

        outputs = self._engine.step()
        now = time.monotonic()
        stats = self._engine.engine_core.scheduler.stats
        for name in (*TRACED_COUNTERS, "num_prefill_tokens", "num_decode_tokens"):
            if value := getattr(stats, name):
                self._counters[name] = self._counters.get(name, 0) + value
        for output in outputs:
            self._connection.send(
                News(
                    output.request_id,
                    output.outputs[0].token_ids,
                    now,
                    output.finished,
                    output.error,
                    output.num_cached_tokens,
                    output.kv_transfer_params,
                )
            )
