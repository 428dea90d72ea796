"""An engine in a child process: prompts in and tokens out through a pipe.

It ends when the pipe closes, and therefore with its parent.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, cast

from prep_common.child_process import PipeChild
from prep_common.parent_link import serve_pipe

if TYPE_CHECKING:
    from engine.engine_core import EngineCore

ENDS_WITHIN_S = 10.0
"""Seconds for an engine to shut down after its pipe closes, before it is killed."""


@dataclass(frozen=True)
class Ask:
    """A request sent to an engine."""

    name: str
    prompt: list[int]
    max_tokens: int
    kv_transfer_params: dict[str, Any] | None = None


@dataclass(frozen=True)
class News:
    """Outputs of one step for one request."""

    name: str
    token_ids: list[int]
    time_s: float
    """End of the step by the monotonic clock, which all processes of a machine share."""
    finished: bool = False
    error: str | None = None
    num_cached_tokens: int = 0
    kv_transfer_params: dict[str, Any] | None = None


@dataclass(frozen=True)
class Ready:
    """Sent when the engine accepts requests."""

    kv_bytes_per_token: int
    block_size: int
    vocab_size: int
    max_model_len: int


@dataclass(frozen=True)
class Failed:
    """Sent when the engine could not start or died."""

    message: str


TOTALS = "totals"
"""Asks for the engine's counters, summed over all steps: a dictionary, sent after all transfers have ended."""


class EngineProcess(PipeChild):
    """The parent's side."""

    def __init__(self, engine_args: dict[str, Any]) -> None:
        super().__init__("app.disagg.engine_process", name="an engine's process", grace_s=ENDS_WITHIN_S)
        self.write(engine_args)

    def receive(self) -> Any:
        """Return the next message. Raises RuntimeError if the engine failed or its process is gone."""
        message = self.read()
        if isinstance(message, Failed):
            raise RuntimeError(f"an engine process failed: {message.message}")
        return message


def _serve(connection: Connection) -> None:
    """Run the child."""
    try:
        engine = _Engine(connection, connection.recv())
        try:
            engine.run()
        finally:
            engine.shutdown()
    except (EOFError, ConnectionError):
        raise
    except Exception as error:
        connection.send(Failed(f"{type(error).__name__}: {error}"))


class _Engine:
    def __init__(self, connection: Connection, engine_args: dict[str, Any]) -> None:
        import torch

        from engine.config import EngineArgs
        from engine.exec.uniproc import worker_of
        from engine.frontend.llm_engine import LLMEngine

        torch.set_num_threads(1)  # two engines share the machine
        self._connection = connection
        self._engine = LLMEngine.from_args(EngineArgs.create(**engine_args))
        self._core = cast("EngineCore", self._engine.engine_core)
        self._counters: dict[str, int] = {}
        cache = worker_of(self._core).runner.kv_cache
        config = self._core.config
        block_size = config.cache.block_size
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
                self._connection.send(dict(self._counters))
            while self._connection.poll(0 if is_busy else None):
                message = self._connection.recv()
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
        stats = self._core.scheduler.stats
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


if __name__ == "__main__":
    # Run with -m, this file is __main__: import it under its real name for pickles.
    from app.disagg.engine_process import _serve as _serve_here

    serve_pipe(_serve_here)
