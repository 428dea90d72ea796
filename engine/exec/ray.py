"""Workers and replicas as Ray actors: the same classes as in our own processes, placed by Ray on any machine.

    RayExecutor: the ranks of one engine          DataParallelCore over actors: whole engines
      driver -- RankWorker.execute -> rank 0         router -- Replica.exchange -> replica 0
                                      rank 1                                       replica 1

Ray starts the processes, moves the calls and notices deaths; everything else is what `multiproc.py` and `dp.py` do.
When one machine is not enough, this is the way to several: run `ray start` on each, then the engine on one of them.

Source: vLLM v1/executor/ray_executor.py, ray_utils.py. Needs `pip install ray`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any

import torch.distributed as dist

from engine.config import ConfigError, EngineArgs, ModelConfig
from engine.core.sched_output import GrammarBitmask, SchedulerOutput
from engine.exec.dp import Replica, replica_args
from engine.exec.multiproc import MultiprocExecutor, MultiprocStep, RankWorker, threads_per_worker
from engine.exec.process import ProcessEnded
from engine.grammar.vocabulary import TokenSource
from engine.sample.processors import LogitsProcessor
from engine.worker.worker import resolve_device

_DEATH_S = 5.0
_UNASKED = -1
"""Number of a call whose result nobody wants: its failure is waited for all the same."""


def connect() -> Any:
    """The module `ray`, connected to the running cluster or to one started here."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "distributed_executor_backend='ray' needs Ray: pip install 'prep[ray]', or use 'mp' for the workers of "
            "one machine"
        )
    import ray

    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
    return ray


class _Host:
    """The actor: holds one object."""

    def __init__(self, factory: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._target = factory(*args)

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        return None if not method else getattr(self._target, method)(*args)


class RemoteActor:
    """A `RemoteProcess` that Ray runs: calls are answered in order, and a death is told by `receive`."""

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
        self.pid = 0  # it may be another machine's
        self._call_ids = count()
        options = {"num_cpus": 0, "num_gpus": num_gpus, "runtime_env": {"env_vars": environment}}
        self._actor = ray.remote(_Host).options(**options).remote(factory, args)
        self._pending: deque[tuple[int, Any]] = deque()
        self._exit_code: int | None = None
        self.send("")

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
            if isinstance(cause := getattr(error, "cause", None), Exception):
                raise cause from None  # its constructor failed
            self._exit_code = -1
            raise ProcessEnded(self.name, None, str(error).splitlines()[0]) from None

    def exit_code(self, timeout: float = _DEATH_S) -> int | None:
        """Something if the actor is dead, else None; Ray does not tell exit codes."""
        ray = connect()
        try:
            ray.get(self._actor.call.remote("", ()), timeout=timeout)
        except ray.exceptions.GetTimeoutError:
            return None  # busy
        except ray.exceptions.RayActorError:
            self._exit_code = -1
        return self._exit_code

    def close(self) -> None:
        connect().kill(self._actor)

    kill = close


def wait_for_any_actor(actors: Sequence[RemoteActor], timeout: float | None = None) -> list[RemoteActor]:
    """Those whose `receive` would return (or raise) at once."""
    ray = connect()
    first = {actor._pending[0][1]: actor for actor in actors if actor._pending}
    ready, _ = ray.wait(list(first), num_returns=1, timeout=timeout)
    return [first[reference] for reference in ready]


class RayExecutor(MultiprocExecutor):
    """The ranks of one engine as actors."""

    def _start_workers(
        self, model_config: ModelConfig, args: EngineArgs, processors: list[type[LogitsProcessor]]
    ) -> None:
        ray = connect()
        host = ray.util.get_node_ip_address()
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        is_cuda = resolve_device(args.device).type == "cuda"
        for rank in range(self.world_size):
            local_rank = 0 if is_cuda else None  # Ray shows each actor its own GPU only
            worker_args = (None, rank, (host, self._store.port), model_config, args, processors, local_rank)
            worker = RemoteActor(
                f"worker rank {rank}",
                RankWorker,
                *worker_args,
                environment=_environment(self.world_size),
                num_gpus=int(is_cuda),
            )
            self._workers.append(worker)  # type: ignore[arg-type]

    def submit(self, out: SchedulerOutput, bitmask: Future[GrammarBitmask] | None = None) -> MultiprocStep:
        """A call of an actor cannot be told more once it runs, so the bitmask goes with it."""
        return self._submit(out, None if bitmask is None else bitmask.result())

    def _wait_for_any(self, workers: Sequence[Any]) -> Sequence[Any]:
        return wait_for_any_actor(workers)


def start_replicas(args: EngineArgs, tokenizer: TokenSource | None) -> list[RemoteActor]:
    """Whole engines as actors. Each runs its own workers, on its own machine."""
    num_workers = args.tensor_parallel_size * args.pipeline_parallel_size
    is_cuda = resolve_device(args.device).type == "cuda"
    inside = EngineArgs(**{**vars(args), "distributed_executor_backend": None})
    return [
        RemoteActor(
            f"data-parallel replica {index}",
            Replica,
            replica_args(inside, index),
            tokenizer,
            environment=_environment(num_workers * args.data_parallel_size),
            num_gpus=num_workers if is_cuda else 0,
        )
        for index in range(args.data_parallel_size)
    ]


def _environment(num_workers: int) -> dict[str, str]:
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {"OMP_NUM_THREADS": str(threads_per_worker(num_workers)), "PYTHONPATH": path}
