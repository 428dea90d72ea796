"""The engine: requests in, tokens out, one step at a time.

    out     = scheduler.schedule()          who computes what
    result  = executor.execute(out)         one forward pass, one token for each row that is ready
    outputs = scheduler.update(out, result) what that means for the requests

Everything a user can see happens in a step, and nothing happens between steps but requests coming and
going. Source: vLLM v1/engine/core.py.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING

from engine.config import CacheConfig, EngineArgs, EngineConfig
from engine.core.errors import EngineDeadError
from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput
from engine.core.scheduler import Scheduler
from engine.exec.base import Executor
from engine.exec.uniproc import UniProcExecutor
from engine.models.hf_config import load_model_config
from engine.resolve import check_args, resolve_class, resolve_logits_processors, resolve_scheduler_config
from engine.worker.worker import resolve_device

if TYPE_CHECKING:
    from engine.core.trace_writer import TraceWriter

logger = logging.getLogger(__name__)


class EngineCore:
    """A scheduler, an executor, and the loop body that joins them.

    An exception in a step ends the engine: every live request gets an error output, once, and whoever
    uses the engine afterwards gets an EngineDeadError whose cause is that exception.
    """

    def __init__(self, config: EngineConfig, scheduler: Scheduler, executor: Executor) -> None:
        self.config = config
        self.scheduler = scheduler
        self.executor = executor
        self.tracer = _make_tracer(config, scheduler)
        self._failure: BaseException | None = None

    @classmethod
    def from_args(cls, args: EngineArgs) -> EngineCore:
        """Load the model, size the cache, build the scheduler."""
        check_args(args)
        processors = resolve_logits_processors(args)
        scheduler_cls = resolve_class(args.scheduler_cls or Scheduler, "scheduler_cls")
        model = load_model_config(args)
        scheduler_config = resolve_scheduler_config(args, model, resolve_device(args.device))
        executor = UniProcExecutor(model, args, processors)
        num_blocks = executor.determine_num_blocks(scheduler_config)
        cache_config = CacheConfig(
            num_blocks,
            args.block_size,
            args.enable_prefix_caching,
            args.kv_cache_dtype,
            detect_hash_collisions=args.debug_checks,
        )
        executor.init_cache(num_blocks, scheduler_config)
        scheduler = scheduler_cls(scheduler_config, cache_config, model_fingerprint=model.fingerprint)
        return cls(EngineConfig(model, cache_config, scheduler_config, args), scheduler, executor)

    def add_request(self, request: Request) -> None:
        """Queue a request, or raise RequestRejected if it could never finish."""
        self.check_alive()
        self.scheduler.add(request)
        if self.tracer is not None:
            self.tracer.add(request)

    def abort(self, request_ids: Iterable[str]) -> list[EngineCoreOutput]:
        """End requests now. Returns the last output of those that lived; other ids are ignored."""
        outputs = self.scheduler.abort(request_ids)
        if self.tracer is not None:
            self.tracer.abort(output.request_id for output in outputs)
        return outputs

    def has_unfinished(self) -> bool:
        """Whether `step` has something to do. A dead engine has not."""
        return self._failure is None and self.scheduler.has_unfinished()

    def step(self) -> list[EngineCoreOutput]:
        """Plan, compute, take in: one iteration over all running requests."""
        self.check_alive()
        try:
            return self._step()
        except KeyboardInterrupt as interrupt:
            # A step that stopped half-way cannot be repeated, but without its requests the engine can go on.
            self.abort(list(self.scheduler.requests))
            if self.tracer is not None:
                self.tracer.error(interrupt)
            raise
        except Exception as error:
            return self._die(error)

    def _step(self) -> list[EngineCoreOutput]:
        began = perf_counter()
        out = self.scheduler.schedule()
        result = self.executor.execute(out)
        outputs = self.scheduler.update(out, result)
        if self.tracer is not None:
            self.tracer.step(out, result, outputs, perf_counter() - began)
        if self.config.args.debug_checks:
            self.scheduler.check_integrity()
        return outputs

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, with nothing changed, while any request holds blocks."""
        return self.scheduler.reset_prefix_cache()

    @property
    def is_dead(self) -> bool:
        return self._failure is not None

    def shutdown(self) -> None:
        """End the trace and give back the device's memory."""
        if self.tracer is not None:
            self.tracer.close()
        self.executor.shutdown()
        self._failure = self._failure or RuntimeError("shutdown() was called")

    def check_alive(self) -> None:
        """Raise EngineDeadError, with the failure as its cause, if the engine is dead."""
        if self._failure is not None:
            raise EngineDeadError(
                f"the engine is dead ({_describe(self._failure)}); create a new one to go on"
            ) from self._failure

    def _die(self, error: Exception) -> list[EngineCoreOutput]:
        """Tell every live request, and remember why."""
        self._failure = error
        logger.error("the engine died in a step", exc_info=error)
        if self.tracer is not None:
            self.tracer.error(error)
        message = f"the engine failed: {_describe(error)}"
        return [
            EngineCoreOutput(
                request.request_id,
                [],
                finish_reason="error",
                events=request.events,
                num_cached_tokens=max(0, request.num_cached_tokens),
                num_preemptions=request.num_preemptions,
                error=message,
            )
            for request in self.scheduler.requests.values()
        ]


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _make_tracer(config: EngineConfig, scheduler: Scheduler) -> TraceWriter | None:
    path, recorded = config.args.trace, os.environ.get("PREP_TRACE", "")  # the second: prep trace record
    if not (path or recorded):
        return None
    from engine.core.trace_writer import TraceWriter, trace_header, unused_path

    return TraceWriter(path or unused_path(recorded), trace_header(config), scheduler)
