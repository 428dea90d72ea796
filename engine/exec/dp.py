"""Data parallelism and DP routing: whole engines side by side, each in its own process, behind one router.

                                   +--> replica 0: EngineCore, scheduler, KV cache, workers
    LLMEngine -- add, abort --> router
              <-- outputs ----     +--> replica 1: ...

Replicas share nothing: each request runs in one of them, and its prefix is cached there. An exchange with a replica
sends new requests and aborts, runs one step, and returns its outputs. The next exchange starts before this process
reads the outputs, so a replica never waits for it. If a replica dies, its requests end with an error.

Source: DPEngineCoreProc in vLLM v1/engine/core.py, DPLBAsyncMPClient in v1/engine/core_client.py.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from engine.config import ConfigError, EngineConfig
from engine.core.admission_checks import check_can_run
from engine.core.errors import EngineDeadError, RequestRejected
from engine.core.hashing import BlockHasher
from engine.core.request import Request
from engine.core.router import PrefixRouter
from engine.core.row_output import last_output
from engine.core.sched_output import EngineCoreOutput
from engine.engine_core import EngineCore
from engine.exec.multiproc import threads_per_worker
from engine.exec.process import RemoteProcess
from engine.grammar.vocabulary import TokenSource
from kernels.registry import environment_of_ranks

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Exchange:
    """Answer of a replica to one exchange."""

    outputs: list[EngineCoreOutput]
    has_unfinished: bool
    failure: str | None = None
    """Reason why the replica's engine is dead; None if it lives."""


class Replica(EngineCore):
    """An engine core in the replica's process, driven by exchanges."""

    def settings(self) -> EngineConfig:
        return self.config

    def exchange(self, aborted: list[str], new: list[Request]) -> Exchange:
        """Abort and add requests, then run a step if there is work."""
        self.abort(aborted)  # the caller has returned their last outputs already
        outputs = []
        for request in new:
            try:
                self.add_request(request)
            except ValueError as error:
                outputs.append(last_output(request, error=str(error)))
        if self.has_unfinished():
            outputs += self.step()
        failure = None
        if self.is_dead:
            failure = next((output.error for output in outputs if output.error), "its engine died")
        return Exchange(outputs, self.has_unfinished(), failure)


class Remote(Protocol):
    """Handle of a replica: a `RemoteProcess` or a Ray actor."""

    name: str

    def send(self, method: str, *args: Any) -> int: ...
    def receive(self) -> tuple[int, Any]: ...
    def close(self) -> None: ...
    def kill(self) -> None: ...
    @classmethod
    def wait_for_any(cls, remotes: Sequence[Any]) -> Sequence[Any]: ...


@dataclass(slots=True)
class _Link:
    """State that this process keeps about one replica."""

    remote: Remote
    new: list[Request] = field(default_factory=list)
    """Requests to send with the next exchange."""
    aborted: list[str] = field(default_factory=list)
    has_unfinished: bool = False
    is_waiting: bool = False
    """Whether an exchange is under way."""


class DataParallelCore:
    """`data_parallel_size` engine cores behind the interface of one EngineCore."""

    def __init__(self, config: EngineConfig, remotes: Sequence[Remote]) -> None:
        self.config = config
        self.router = PrefixRouter(len(remotes))
        self._links = [_Link(remote) for remote in remotes]
        self._requests: dict[str, tuple[Request, int]] = {}
        """Unfinished requests with their replica, by id."""
        self._hasher = BlockHasher(
            config.cache.block_size,
            model_fingerprint=config.model.fingerprint,
            kv_cache_dtype=config.cache.kv_cache_dtype,
        )
        self._late_outputs: list[EngineCoreOutput] = []
        """Outputs of steps that ended while `_call_all` waited."""
        self._failure: str | None = None

    @classmethod
    def create(cls, config: EngineConfig, tokenizer: TokenSource | None = None) -> DataParallelCore:
        """Start all replicas at once, and wait until they have loaded the model."""
        remotes = _start_replicas(config, tokenizer)
        try:
            configs: list[EngineConfig] = []
            for remote in remotes:
                remote.receive()
                remote.send("settings")
                configs.append(remote.receive()[1])
        except BaseException:
            for remote in remotes:
                remote.kill()
            raise
        num_blocks = min(config.cache.num_blocks for config in configs)
        cache = replace(configs[0].cache, num_blocks=num_blocks)
        return cls(replace(configs[0], cache=cache), remotes)

    def add_request(self, request: Request) -> None:
        """Route a request to a replica, or raise RequestRejected if it could never finish."""
        self.check_alive()
        if request.request_id in self._requests:
            raise RequestRejected(request.request_id, "duplicate_id", "it is unfinished; use another id")
        check_can_run(request, self.config.scheduler, self.config.cache)
        if self.config.cache.enable_prefix_caching:
            self._hasher.extend(request)
        replica = self.router.route(request.block_hashes)
        self._requests[request.request_id] = (request, replica)
        self._links[replica].new.append(request)

    def abort(self, request_ids: Iterable[str]) -> list[EngineCoreOutput]:
        """End requests now. Return the last output of each unfinished one; ignore other ids."""
        outputs = []
        for request_id in request_ids:
            if request_id in self._requests:
                request, replica = self._forget(request_id)
                link = self._links[replica]
                if request in link.new:
                    link.new.remove(request)
                else:
                    link.aborted.append(request_id)
                outputs.append(EngineCoreOutput(request_id, [], finish_reason="abort", events=request.events))
        return outputs

    def has_unfinished(self) -> bool:
        """Whether `step` has something to do; False for a dead engine."""
        return self._failure is None and bool(self._requests or self._late_outputs)

    @property
    def has_transfers(self) -> bool:
        """False: KV connectors exclude data parallelism."""
        return False

    def step(self) -> list[EngineCoreOutput]:
        """Wait until a replica has finished a step; return the outputs of all that have."""
        self.check_alive()
        try:
            return self._step()
        except KeyboardInterrupt:
            self.abort(list(self._requests))
            raise

    def _step(self) -> list[EngineCoreOutput]:
        outputs, self._late_outputs = self._late_outputs, []
        for index in self.router.alive:
            outputs += self._begin_exchange(index)
        waiting = [self._links[index].remote for index in self.router.alive if self._links[index].is_waiting]
        if not waiting or outputs:
            return outputs
        ready = waiting[0].wait_for_any(waiting)
        for index in self.router.alive:
            if self._links[index].remote in ready:
                outputs += self._end_exchange(index)
                outputs += self._begin_exchange(index)
        return outputs

    def _begin_exchange(self, index: int) -> list[EngineCoreOutput]:
        """Start an exchange if there is work and none is under way."""
        link = self._links[index]
        if link.is_waiting or not (link.new or link.aborted or link.has_unfinished):
            return []
        try:
            link.remote.send("exchange", link.aborted, link.new)
        except Exception as error:
            return self._lose(index, str(error))
        link.new, link.aborted, link.is_waiting = [], [], True
        return []

    def _end_exchange(self, index: int) -> list[EngineCoreOutput]:
        link = self._links[index]
        try:
            _, exchange = link.remote.receive()
        except Exception as error:
            return self._lose(index, str(error))
        link.is_waiting, link.has_unfinished = False, exchange.has_unfinished
        # Aborted requests have had their last output, and another request may use their id by now.
        outputs = [output for output in exchange.outputs if output.request_id not in link.aborted]
        for output in outputs:
            if output.finish_reason is not None:
                self._forget(output.request_id)
        if exchange.failure is not None:
            return outputs + self._lose(index, exchange.failure)
        return outputs

    def _lose(self, index: int, why: str) -> list[EngineCoreOutput]:
        """Remove a dead replica; return an error output for each of its requests."""
        link = self._links[index]
        link.is_waiting = link.has_unfinished = False
        link.new, link.aborted = [], []
        link.remote.kill()
        self.router.remove(index)
        message = f"data-parallel replica {index} is gone: {why}"
        logger.error("%s; %d are left", message, len(self.router.alive))
        if not self.router.alive:
            self._failure = message
        lost = [request_id for request_id, (_, replica) in self._requests.items() if replica == index]
        return [last_output(self._forget(request_id)[0], error=message) for request_id in lost]

    def _forget(self, request_id: str) -> tuple[Request, int]:
        request, replica = self._requests.pop(request_id)
        self.router.finish(replica)
        return request, replica

    def load_lora(self, key: str, folder: str) -> None:
        """Load an adapter into every replica, or raise LoRAError."""
        self.check_alive()
        self._call_all("load_lora", key, folder)

    def unload_lora(self, key: str) -> None:
        """Unload an adapter as soon as no unfinished request uses it."""
        self._call_all("unload_lora", key)

    def reset_prefix_cache(self) -> bool:
        """Empty all prefix caches. Return False, and change nothing, while any request is unfinished."""
        return not self._requests and all(self._call_all("reset_prefix_cache"))

    def _call_all(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every replica between two steps."""
        answers = []
        for index in self.router.alive:
            link = self._links[index]
            while link.is_waiting or link.aborted:
                self._late_outputs += self._begin_exchange(index)
                self._late_outputs += self._end_exchange(index)
            if index in self.router.alive:
                link.remote.send(method, *args)
                answers.append(link.remote.receive()[1])
        return answers

    @property
    def is_dead(self) -> bool:
        return self._failure is not None

    def check_alive(self) -> None:
        """Raise EngineDeadError if no replica is left."""
        if self._failure is not None:
            raise EngineDeadError(f"the engine is dead ({self._failure}); create a new one to go on")

    def shutdown(self) -> None:
        """End all replicas."""
        for index in self.router.alive:
            remote = self._links[index].remote
            try:
                remote.send("shutdown")
            except Exception:
                logger.debug("%s was gone already", remote.name)
            remote.close()
            self.router.remove(index)
        self._failure = self._failure or "shutdown() was called"


def _start_replicas(config: EngineConfig, tokenizer: TokenSource | None) -> Sequence[Remote]:
    """Start a process for each replica, on a GPU with GPUs of its own; with Ray, on any machine of the cluster."""
    num_workers, num_replicas = config.parallel.world_size, config.parallel.data_parallel_size
    is_ray, is_cuda = config.parallel.backend == "ray", config.device == "cuda"
    if is_ray:  # a replica runs its own workers on its own machine
        backend = "uni" if num_workers == 1 else "mp"
        config = replace(config, parallel=replace(config.parallel, backend=backend))
    jobs = [
        (f"data-parallel replica {index}", Replica.create, (replica_config(config, index), tokenizer))
        for index in range(num_replicas)
    ]
    if is_ray:
        from engine.exec.ray import start_actors

        num_gpus = num_workers if is_cuda else 0
        return start_actors(jobs, num_gpus=num_gpus, num_workers=num_workers * num_replicas)
    environment = {"OMP_NUM_THREADS": str(threads_per_worker(num_workers * num_replicas))}
    if not is_cuda:
        environment |= environment_of_ranks()
    replicas = []
    for index, (name, factory, arguments) in enumerate(jobs):
        gpus = {"CUDA_VISIBLE_DEVICES": ",".join(_gpus(index, num_workers))} if is_cuda else {}
        replicas.append(RemoteProcess(name, factory, *arguments, environment=environment | gpus))
    return replicas


def _gpus(replica: int, num_workers: int) -> list[str]:
    """Return the GPUs of one replica, out of those that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    gpus = visible.split(",")[replica * num_workers : (replica + 1) * num_workers]
    if len(gpus) < num_workers:
        raise ConfigError(
            f"data-parallel replica {replica} needs {num_workers} GPUs of its own and {len(gpus)} are left; lower "
            "data_parallel_size"
        )
    return gpus


def replica_config(config: EngineConfig, index: int) -> EngineConfig:
    """Return a replica's settings: it writes a trace of its own."""
    if config.trace is None:
        return config
    path = Path(config.trace)
    return replace(config, trace=str(path.with_name(f"{path.stem}.replica{index}{path.suffix}")))
