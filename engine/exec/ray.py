"""Workers and replicas as Ray actors, placed by Ray on any machine of a cluster.

    RayExecutor: the ranks of one engine          DataParallelCore over actors: whole engines
      driver -- RankWorker.execute -> rank 0         router -- Replica.exchange -> replica 0
                                      rank 1                                       replica 1

Ray starts the processes, carries the calls and notices deaths; `multiproc.py` and `dp.py` do everything else. For
several machines run `ray start` on each, then the engine on one of them.

Source: vLLM v1/executor/ray_executor.py, ray_utils.py. Needs `pip install ray`.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Any, ClassVar, Self
from weakref import WeakSet

import torch.distributed as dist

from engine.config import ConfigError, EngineConfig
from engine.core.sched_output import GrammarBitmask, SchedulerOutput
from engine.exec.base import PendingStep
from engine.exec.multiproc import MultiprocExecutor, RankWorker, threads_per_worker
from prep_common.child_process import ProcessEnded

logger = logging.getLogger(__name__)

_START_S = 600.0
"""Time for Ray to place an actor and start its process."""
_DEATH_S = 5.0
"""Time for an actor to answer a ping, or to finish its calls."""
_KNOCK_S = 30.0
_UNASKED = -1
"""Number of a call without a result; its failure is still awaited."""

_LOCAL_CLUSTER: dict[str, Any] = {
    "object_store_memory": 128 * 2**20,  # bytes; plans and tokens are small and do not go through it
    "include_dashboard": False,
    "_system_config": {
        "worker_niceness": 0,  # the default of 15 starves workers on a busy machine
        "prestart_worker_first_driver": False,  # our actors set environment variables and need new processes
        "worker_register_timeout_seconds": int(_START_S),  # Ray restarts slower workers over and over
    },
}
"""Options of a cluster that is started here."""


def connect() -> Any:
    """Return the module `ray`, connected to the running cluster or to one started here.

    Raises ConfigError if Ray is not installed or does not start.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "distributed_executor_backend='ray' needs Ray: pip install -e '.[ray]', or use 'mp' for the workers of "
            "one machine"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when it is imported
    import ray

    if not ray.is_initialized():
        _Cluster.is_ours = _join_or_start(ray)
    return ray


def _join_or_start(ray: Any) -> bool:
    """Join the running cluster, or start one. Return True if it was started here."""
    options = {"log_to_driver": False, "configure_logging": False}
    try:
        _knock(os.environ.get("RAY_ADDRESS", ""))
        try:
            ray.init(**options, **_LOCAL_CLUSTER)
            return True
        except ValueError:  # a running cluster has its own settings
            ray.init(**options)
            return False
    except Exception as error:
        raise ConfigError(
            f"Ray cannot be reached or started ({type(error).__name__}: {error}); look at `ray status` and at "
            "RAY_ADDRESS, or use distributed_executor_backend='mp' for the workers of one machine"
        ) from error


def _knock(address: str) -> None:
    """Raise OSError if nothing listens at the address: joining such a cluster would end this process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()


class _Cluster:
    """The cluster that this process is connected to, and our actors in it."""

    is_ours = False
    """True if it was started here; it then ends with the last actor."""
    actors: ClassVar[WeakSet[RemoteActor]] = WeakSet()


class _Host:
    """The actor, which holds one object."""

    def pid(self) -> int:
        return os.getpid()

    def build(self, factory: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._target = factory(*args)

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        return getattr(self._target, method)(*args)


class RemoteActor:
    """A `RemoteProcess` that Ray runs: calls are answered in order, and `receive` raises if it died.

    Ray places the actor (`wait_until_placed`); building its object is call 0.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[..., Any],
        *args: Any,
        environment: dict[str, str],
        num_gpus: int = 0,
    ) -> None:
        ray = connect()
        self.name = name
        self.pid = 0
        """Process id on its machine; 0 until it is placed."""
        self._call_ids = count(1)
        # Ray only counts CPUs; with none asked for, actors fit on any machine.
        options = {"num_cpus": 0, "num_gpus": num_gpus, "runtime_env": {"env_vars": environment}}
        self._actor = ray.remote(_Host).options(**options).remote()
        self._placed = self._actor.pid.remote()
        self._pending: deque[tuple[int, Any]] = deque([(0, self._actor.build.remote(factory, args))])
        _Cluster.actors.add(self)

    def send(self, method: str, *args: Any, answered: bool = True) -> int:
        call_id = next(self._call_ids)
        reference = self._actor.call.remote(method, args)
        self._pending.append((call_id if answered else _UNASKED, reference))
        return call_id

    def receive(self) -> tuple[int, Any]:
        ray = connect()
        call_id, reference = self._pending.popleft()
        try:
            return call_id, ray.get(reference)
        except ray.exceptions.RayTaskError as error:
            raise getattr(error, "cause", None) or error from None
        except ray.exceptions.RayActorError as error:
            raise ProcessEnded(self.name, None, f"ended: {str(error).splitlines()[0]}") from None

    def exit_code(self, timeout: float = _DEATH_S) -> int | None:
        """Return -1 if the actor is dead, else None; Ray reports no exit codes."""
        ray = connect()
        try:
            ray.get(self._actor.pid.remote(), timeout=timeout)
        except ray.exceptions.RayActorError:
            return -1
        except ray.exceptions.GetTimeoutError:
            pass  # busy
        return None

    def close(self) -> None:
        """End the actor after its pending calls, and Ray if it was started here. A second call does nothing."""
        if self in _Cluster.actors and self._pending:
            references = [reference for _, reference in self._pending]
            connect().wait(references, num_returns=len(references), timeout=_DEATH_S)
        self.kill()

    def kill(self) -> None:
        """End the actor at once, and Ray if it was started here."""
        if self not in _Cluster.actors:
            return
        _Cluster.actors.remove(self)
        ray = connect()
        ray.kill(self._actor)
        if _Cluster.is_ours and not _Cluster.actors:
            ray.shutdown()

    @classmethod
    def wait_for_any(cls, actors: Sequence[Self]) -> list[Self]:
        """Wait until `receive` of at least one would not wait; return all of these."""
        first = {actor._pending[0][1]: actor for actor in actors if actor._pending}
        ready, _ = connect().wait(list(first), num_returns=1)
        return [first[reference] for reference in ready]


Job = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""(name of an actor, factory of its object, the factory's arguments)"""


def start_actors(jobs: Sequence[Job], *, num_gpus: int, num_workers: int) -> list[RemoteActor]:
    """Start an actor for each job and wait until Ray has placed them; after an error or Ctrl-C none remains.

    num_gpus: of each actor. num_workers: all that may share a machine's cores.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment = {"OMP_NUM_THREADS": str(threads_per_worker(num_workers)), "PYTHONPATH": path}
    if not num_gpus:  # on machines that may not have compiled kernels yet; all actors must compute alike
        environment["PREP_KERNELS_BUILD"] = "wait"
    actors: list[RemoteActor] = []
    try:
        for name, factory, arguments in jobs:
            actors.append(RemoteActor(name, factory, *arguments, environment=environment, num_gpus=num_gpus))
        wait_until_placed(actors)
    except BaseException:
        for actor in actors:
            actor.kill()
        raise
    return actors


def wait_until_placed(actors: Sequence[RemoteActor]) -> None:
    """Wait until Ray has started the actors' processes. Raises ConfigError if it cannot place one."""
    ray = connect()
    waited, names = 0.0, ""
    pending = {actor._placed: actor for actor in actors}
    while pending and waited < _START_S:
        ready, _ = ray.wait(list(pending), num_returns=1, timeout=_DEATH_S)
        for reference in ready:
            actor = pending.pop(reference)
            with suppress(ray.exceptions.RayError):  # `receive` raises it
                actor.pid = ray.get(reference)
        if not ready:
            names = ", ".join(actor.name for actor in pending.values())
            if not waited:
                logger.info("waiting for Ray to start %s", names)
            waited += _DEATH_S
    if pending:
        resources = {name: number for name, number in ray.available_resources().items() if ":" not in name}
        raise ConfigError(
            f"Ray did not start {names} within {_START_S:.0f} s; the cluster has free: {resources}. See `ray status`: "
            "are all machines joined, and is there a GPU for every worker?"
        )


class RayExecutor(MultiprocExecutor):
    """The workers of one engine as Ray actors."""

    remote_class = RemoteActor

    def _start_workers(self, config: EngineConfig) -> list[Any]:
        host = connect().util.get_node_ip_address()
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        is_cuda = config.device == "cuda"
        local_rank = 0 if is_cuda else None  # each actor sees only its own GPU
        address = (host, self._store.port)
        jobs: list[Job] = [
            (f"worker rank {rank}", RankWorker, (None, rank, address, config, local_rank))
            for rank in range(self.world_size)
        ]
        return start_actors(jobs, num_gpus=int(is_cuda), num_workers=self.world_size)

    def submit(self, out: SchedulerOutput, bitmask: Future[GrammarBitmask] | None = None) -> PendingStep:
        """Submit a step together with its bitmask: a running actor call cannot receive it later."""
        return self._submit(out, None if bitmask is None else bitmask.result())
