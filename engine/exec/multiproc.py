"""One process per worker: every rank runs the same program on its part of the model.

    EngineCore -- SchedulerOutput --> rank 0   rank 1   rank 2   rank 3
                                        \\_______/        \\_______/
                                         stage 0  ------>  stage 1
               <-- ModelRunnerOutput -------------------- rank 2 (samples; the others only compute)

The scheduler's plan goes to every rank; one rank samples, and its tokens reach the others inside the next plan
(`Scheduled.new_token_ids`). Several steps under way keep pipeline stages busy. If a worker dies or fails, all workers
end, and the engine with an error that names the worker.

Source: vLLM v1/executor/multiproc_executor.py.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist

from engine.config import ConfigError, EngineConfig
from engine.core.errors import EngineDeadError
from engine.core.sched_output import GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.exec.base import PendingStep
from engine.exec.process import Channel, RemoteProcess
from engine.parallel import join_world
from engine.worker.worker import Worker, call_worker, resolve_device
from kernels.registry import environment_of_ranks
from prep_common.child_process import ProcessEnded
from prep_common.processors import num_processors

logger = logging.getLogger(__name__)

_BLAME_S = 1.0
"""Time for a worker whose connections broke to be seen as dead."""


class RankWorker:
    """The object in the process of one rank: joins the other ranks and runs a worker."""

    wants_channel = True

    def __init__(
        self,
        channel: Channel | None,
        rank: int,
        store_address: tuple[str, int],
        config: EngineConfig,
        local_rank: int | None = None,
    ) -> None:
        """local_rank: number of the GPU on this machine; None: `rank`."""
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        device = rank_device(config.device, rank if local_rank is None else local_rank)
        store = dist.TCPStore(*store_address, is_master=False)
        sizes = config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size
        self._ranks = join_world(rank, *sizes, store, device)
        self._channel = channel
        self._worker = Worker(config, device=device, ranks=self._ranks)

    def execute(
        self, out: SchedulerOutput, bitmask: GrammarBitmask | Literal["late"] | None
    ) -> ModelRunnerOutput:
        """bitmask: "late" if the engine sends it during the forward pass."""
        future: Future[GrammarBitmask] | None = None
        if bitmask == "late":
            assert self._channel is not None
            future = LateBitmask(self._channel)
        elif bitmask is not None:
            future = Future()
            future.set_result(bitmask)
        calls, num_bytes = self._ranks.total_traffic()
        result = self._worker.execute(out, future)
        result.num_collectives, result.collective_bytes = self._ranks.total_traffic()
        result.num_collectives -= calls
        result.collective_bytes -= num_bytes
        return result

    def call(self, method: str | Callable[..., Any], *args: Any) -> Any:
        return call_worker(self._worker, method, *args)


class LateBitmask(Future[GrammarBitmask]):
    """A bitmask that is received when the sampler asks for it."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def result(self, timeout: float | None = None) -> GrammarBitmask:
        if not self.done():
            self.set_result(self._channel.receive_late())
        return super().result(timeout)


class MultiprocExecutor:
    """`tensor_parallel_size * pipeline_parallel_size` workers, each of which gets every step."""

    remote_class: ClassVar[Any] = RemoteProcess

    def __init__(self, config: EngineConfig) -> None:
        self.world_size = config.parallel.world_size
        self.output_rank = self.world_size - config.parallel.tensor_parallel_size
        self._workers: list[RemoteProcess] = []
        self._answers: dict[tuple[int, int], Any] = {}
        """Answers not yet collected, by rank and call. Those of steps that Ctrl-C interrupted stay here."""
        try:
            self._workers += self._start_workers(config)
            self.collect(dict.fromkeys(range(self.world_size), 0))
        except BaseException:
            self._kill()
            raise
        logger.info("workers: %s", ", ".join(f"{w.name} (pid {w.pid})" for w in self._workers))

    def _start_workers(self, config: EngineConfig) -> list[RemoteProcess]:
        # The system picks the port, and this process keeps it as long as the workers live.
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        address = ("127.0.0.1", self._store.port)
        environment = {"OMP_NUM_THREADS": str(threads_per_worker(self.world_size))}
        if config.device == "cpu":
            environment |= environment_of_ranks()
        return [
            RemoteProcess(f"worker rank {rank}", RankWorker, rank, address, config, environment=environment)
            for rank in range(self.world_size)
        ]

    def submit(self, out: SchedulerOutput, bitmask: Future[GrammarBitmask] | None = None) -> PendingStep:
        step = self._submit(out, None if bitmask is None else "late")
        if bitmask is not None:
            value = None
            try:
                value = bitmask.result()
            finally:  # the worker must never wait in vain
                worker = self._workers[self.output_rank]
                self._tell(worker, lambda: worker.send_late(value))
        return step

    def _submit(self, out: SchedulerOutput, bitmask: GrammarBitmask | Literal["late"] | None) -> PendingStep:
        out = replace(out, not_scheduled=[])  # for traces, not for workers
        for rank, worker in enumerate(self._live_workers()):
            if rank == self.output_rank:
                call_id = self._send(worker, "execute", out, bitmask)
            else:
                self._send(worker, "execute", out, None, answered=False)
        return lambda: self.collect({self.output_rank: call_id})[0]

    def collective_rpc(self, method: str | Callable[..., Any], *args: Any) -> list[Any]:
        call_ids = {
            rank: self._send(worker, "call", method, *args)
            for rank, worker in enumerate(self._live_workers())
        }
        return self.collect(call_ids)

    def collect(self, call_ids: Mapping[int, int]) -> list[Any]:
        """Wait for the answers to these calls, one per rank, and return them in this order.

        Raises the error of any rank that failed. Answers to other calls are kept: steps under way collect them later.
        """
        while not call_ids.items() <= self._answers.keys():
            for worker in self.remote_class.wait_for_any(self._live_workers()):
                try:
                    call_id, answer = worker.receive()
                except Exception as error:
                    raise self._fail(worker, error) from error
                self._answers[self._workers.index(worker), call_id] = answer
        return [self._answers.pop(key) for key in call_ids.items()]

    def shutdown(self) -> None:
        """End all workers by closing their connections."""
        while self._workers:
            self._workers.pop().close()

    def _send(self, worker: RemoteProcess, method: str, *args: Any, answered: bool = True) -> int:
        return self._tell(worker, lambda: worker.send(method, *args, answered=answered))

    def _tell(self, worker: RemoteProcess, send: Callable[[], Any]) -> Any:
        try:
            return send()
        except ProcessEnded as error:
            raise self._fail(worker, error) from error

    def _fail(self, worker: RemoteProcess, error: Exception) -> Exception:
        """End all workers and return the error that names the failed one."""
        if isinstance(error, ConfigError):
            self._kill()
            return error
        message = f"{worker.name} failed: {type(error).__name__}: {error}"
        if isinstance(error, ProcessEnded):
            message = str(error)
        else:  # peers of a dead worker notice broken connections before its death and fail too
            for other in self._workers:
                exit_code = other.exit_code(_BLAME_S / len(self._workers))
                if exit_code is not None:
                    message = str(ProcessEnded(other.name, exit_code))
                    break
        self._kill()
        return EngineDeadError(message)

    def _kill(self) -> None:
        while self._workers:
            self._workers.pop().kill()

    def _live_workers(self) -> list[RemoteProcess]:
        if not self._workers:
            raise RuntimeError("the executor was shut down")
        return self._workers


def rank_device(name: str, local_rank: int) -> torch.device:
    """Return the GPU of a worker, or the CPU that all workers share. Raises ConfigError if GPUs run out."""
    device = resolve_device(name)
    if device.type != "cuda":
        return device
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"worker {local_rank} needs a GPU of its own, and this machine has {torch.cuda.device_count()}; "
            "lower tensor_parallel_size or pipeline_parallel_size, or use distributed_executor_backend='ray' "
            "over several machines"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def threads_per_worker(num_workers: int, num_reserved: int = 0) -> int:
    """Return the CPU threads of each worker on this machine: OMP_NUM_THREADS, or an equal share of the cores.

    num_reserved: cores for other work.
    """
    if (asked := os.environ.get("OMP_NUM_THREADS", "")).isdigit():
        return int(asked)
    return max(1, (num_processors() - num_reserved) // num_workers)
