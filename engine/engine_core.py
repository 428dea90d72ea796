"""The engine: requests in, tokens out, one step at a time.

    out     = scheduler.schedule()             which tokens of which requests to compute
    bitmask = grammars.build_bitmask(out)      which tokens structured outputs allow; built during the forward pass
    result  = executor.submit(out, bitmask)()   a forward pass, and a token for each row that is ready
    outputs = scheduler.update(out, result)    new tokens, finished requests

All output is produced in steps; between steps, requests are added and aborted.
Source: vLLM v1/engine/core.py.
"""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from engine.config import ConfigError, EngineArgs, EngineConfig, TierConfig
from engine.core.errors import EngineDeadError, RequestRejected
from engine.core.kv_events import KVEventBatch, KVEventFeed, MemoryPublisher
from engine.core.kv_zmq import publisher_of
from engine.core.lora_slots import LoRASlots
from engine.core.observer import IntegrityCheck, StepObserver
from engine.core.request import Request
from engine.core.resources import default_resources
from engine.core.row_output import last_output
from engine.core.sched_output import EngineCoreOutput, GrammarBitmask, ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.core.stats import StepStats
from engine.exec.base import Executor, PendingStep, executor_class
from engine.grammar.manager import GrammarManager
from engine.grammar.vocabulary import TokenSource, Vocabulary
from engine.resolve import resolve, trace_path
from engine.trace.format import TraceError
from engine.transfer import connector_class
from prep_common.memory import free_host_bytes
from prep_common.stages import Stages

if TYPE_CHECKING:
    from engine.debug.port import DebugPort
    from engine.trace.writer import TraceWriter

GRAMMAR_POLL_S = 0.02
"""Longest wait for a grammar in a step that has nothing else to do."""

LARGE_STEP_TOKENS = 2048
"""Tokens of a step whose memory the workers give back when the engine is idle. Smaller steps free little."""

logger = logging.getLogger(__name__)


class EngineCore:
    """A scheduler, an executor, and the step that joins them.

    An exception in a step ends the engine: every unfinished request gets an error output, and later calls raise an
    EngineDeadError whose cause is that exception.
    """

    def __init__(
        self,
        config: EngineConfig,
        scheduler: Scheduler,
        executor: Executor,
        make_vocabulary: Callable[[], Vocabulary] | None = None,
    ) -> None:
        """make_vocabulary: returns the bytes of all tokens; without it structured outputs are rejected."""
        self.config = config
        self.scheduler = scheduler
        self.executor = executor
        self.grammars = (
            GrammarManager(config.structured_outputs, make_vocabulary) if make_vocabulary else None
        )
        self._structured: dict[str, Request] = {}
        """Unfinished requests with a grammar, by id."""
        self.start_seconds: dict[str, float] = {}
        """Seconds of the start by stage; empty if this engine was not made by `create`."""
        self._retired_loras: list[str] = []
        """Keys of unloaded adapters that unfinished requests still use."""
        self.debug = None if config.debug_port is None else _open_debug_port(config)
        self.tracer = _make_tracer(config, scheduler, self.debug)
        if self.debug is not None:
            self.debug.engine = self
            print(f"debug port: prep app --attach '{self.debug.url}'", file=sys.stderr, flush=True)
        self.kv_events: KVEventFeed | None = None
        if config.kv_events is not None:
            self.kv_events = KVEventFeed(scheduler, publisher_of(config.kv_events))
        check = IntegrityCheck(scheduler) if config.debug_checks else None
        observers = (self.tracer, self.debug, self.kv_events, check)
        self.observers: list[StepObserver] = [observer for observer in observers if observer is not None]
        self._failure: BaseException | None = None
        self._under_way: deque[_StepUnderWay] = deque()
        self._had_large_step = False  # since the workers last released memory

    @classmethod
    def from_args(cls, args: EngineArgs, tokenizer: TokenSource | None = None) -> EngineCore:
        """Resolve the settings and start an engine. Structured outputs need the tokenizer."""
        return cls.create(resolve(args), tokenizer)

    @classmethod
    def create(cls, config: EngineConfig, tokenizer: TokenSource | None = None) -> EngineCore:
        """Load the model, size and allocate the cache, build the scheduler."""
        stages = Stages()
        executor = executor_class(config.parallel.backend)(config)
        stages.end("weights")
        num_blocks = min(executor.collective_rpc("determine_num_blocks"))  # they share one block table
        executor.collective_rpc("init_cache", num_blocks)
        cache = replace(config.cache, num_blocks=num_blocks, tiers=_init_tiers(config, executor))
        config = replace(config, cache=cache)
        logger.info("%s", executor.collective_rpc("describe")[0])
        stages.end("KV cache")
        scheduler = (config.scheduler_cls or Scheduler)(
            config.scheduler,
            config.cache,
            model_fingerprint=config.model.fingerprint,
            **_connector_options(config, executor),
        )
        make_vocabulary = None
        if tokenizer is not None:
            ends = (*config.model.eos_token_ids, tokenizer.eos_token_id)
            known = {end for end in ends if end is not None}
            make_vocabulary = partial(Vocabulary.of, tokenizer, config.model.vocab_size, known)
        core = cls(config, scheduler, executor, make_vocabulary)
        core.start_seconds = stages.seconds
        return core

    def add_request(self, request: Request) -> None:
        """Queue a request, or raise RequestRejected if it could never finish."""
        self.check_alive()
        structure = request.sampling_params.structured_outputs
        if structure is not None:
            request.grammar_future = self._grammars_for(request).compile(structure)
        self.scheduler.add(request)
        if structure is not None:
            self._structured[request.request_id] = request
        for observer in self.observers:
            observer.add(request)

    def _grammars_for(self, request: Request) -> GrammarManager:
        """Return the manager that compiles the request's grammar, or raise RequestRejected."""
        if self.grammars is None:
            message = "structured outputs need a tokenizer, and the engine was started without one"
            raise RequestRejected(request.request_id, "no_tokenizer", message)
        if not request.eos_token_ids:
            message = "structured outputs end with end-of-sequence, and this model has no such token"
            raise RequestRejected(request.request_id, "no_eos", message)
        return self.grammars

    def abort(self, request_ids: Iterable[str]) -> list[EngineCoreOutput]:
        """End requests now. Return the last output of each unfinished one; ignore other ids."""
        outputs = self.scheduler.abort(request_ids)
        for observer in self.observers:
            observer.abort(output.request_id for output in outputs)
        return outputs

    def levels(self) -> StepStats:
        """Return the levels between two steps, such as after an abort, without flows: those are counted once."""
        return self.scheduler.fill_levels(StepStats(step=self.scheduler.stats.step))

    def has_unfinished(self) -> bool:
        """Whether `step` has something to do; False for a dead engine."""
        if self._failure is not None:
            return False
        return self.scheduler.has_unfinished() or (self.debug is not None and self.debug.control.has_commands)

    @property
    def has_transfers(self) -> bool:
        """Whether KV of finished requests is still to be transferred."""
        return self.scheduler.has_leftovers()

    def step(self) -> list[EngineCoreOutput]:
        """Schedule, execute, update: one iteration over all running requests.

        While an observer holds the engine (a paused debugger), this returns soon without running a step: call it again.
        """
        self.check_alive()
        for observer in self.observers:
            if (outputs := observer.before_step()) is not None:
                return outputs
        try:
            return self._step()
        except KeyboardInterrupt as interrupt:
            # An interrupted step cannot be repeated, but without its requests the engine can go on; unless the
            # interrupt came in the middle of a change to the scheduler's queues.
            try:
                self.abort(list(self.scheduler.requests))
            except Exception:
                self._failure = RuntimeError("it was interrupted in the middle of a step")
            for observer in self.observers:
                observer.error(interrupt)
            raise
        except Exception as error:
            return self._die(error)
        finally:
            for observer in self.observers:
                observer.after_step()

    def _step(self) -> list[EngineCoreOutput]:
        """Submit steps until every pipeline stage has one, then wait for the oldest and apply its result.

            stage 0   | a | b | a | b |     a request is in one step at a time: its next token
            stage 1       | a | b | a | b |     needs the one before

        Without a pipeline that is one step: submitted, waited for, applied.
        Source: step_with_batch_queue in vLLM v1/engine/core.py.
        """
        depth = self.config.scheduler.max_concurrent_batches
        while len(self._under_way) < depth:
            began = perf_counter()
            out = self.scheduler.schedule()
            has_news = out.scheduled or out.finished_request_ids or out.preempted_request_ids
            if self._under_way and not has_news:
                break
            if self.config.parallel.world_size > 1:
                self._send_tokens(out)
            bitmask = self._build_bitmask(out) if self._structured else None
            pending = self.executor.submit(out, bitmask)
            self._under_way.append(_StepUnderWay(out, bitmask, pending, self.scheduler.stats, began))
        num_idle = depth - sum([bool(step.out.scheduled) for step in self._under_way])
        step = self._under_way.popleft()
        result = step.pending()
        self.scheduler.stats = step.stats
        step.stats.num_idle_stages = num_idle
        if self._structured:
            self._take_bitmask(step.bitmask, result)
        outputs = self.scheduler.update(step.out, result)
        if self._retired_loras:
            self._drop_retired_loras()
        self._had_large_step |= step.stats.num_scheduled_tokens >= LARGE_STEP_TOKENS
        if self._had_large_step and not self.scheduler.has_unfinished():
            self.executor.collective_rpc("release_memory")
            self._had_large_step = False
        duration_s = perf_counter() - step.began
        for observer in self.observers:
            observer.step(step.out, result, outputs, duration_s)
        return outputs

    def _send_tokens(self, out: SchedulerOutput) -> None:
        """Tell all workers the tokens that one of them sampled."""
        for row in out.scheduled:
            request = self.scheduler.requests[row.request_id]
            if row.start >= request.num_prompt_tokens:
                row.new_token_ids = request.token_ids[row.start : row.start + row.num_tokens]

    def _build_bitmask(self, out: SchedulerOutput) -> Future[GrammarBitmask] | None:
        """Start to build the mask of tokens that grammars allow, in parallel with the forward pass."""
        assert self.grammars is not None
        live = self.scheduler.requests
        self._structured = {name: r for name, r in self._structured.items() if live.get(name) is r}
        if not out.scheduled and not self._under_way and self._structured:
            self.grammars.wait(self._structured.values(), GRAMMAR_POLL_S)
        return self.grammars.build_bitmask(out, self._structured)

    def _take_bitmask(self, bitmask: Future[GrammarBitmask] | None, result: ModelRunnerOutput) -> None:
        assert self.grammars is not None
        if bitmask is not None:
            made = bitmask.result()  # grammars may advance only after the mask thread has read them
            result.errors |= made.errors
            self.scheduler.stats.num_masked_rows = len(made.rows)
        self.scheduler.stats.grammar_compile_us = self.grammars.take_compile_us()

    def load_lora(self, key: str, folder: str) -> None:
        """Load an adapter into the host memory of every worker under a new key, or raise LoRAError."""
        self.check_alive()
        self.executor.collective_rpc("add_lora", key, folder)
        if (slots := LoRASlots.of(self.scheduler)) is not None and (drops := slots.load(key)):
            self.executor.collective_rpc("drop_loras", drops)

    def unload_lora(self, key: str) -> None:
        """Unload an adapter as soon as no unfinished request uses it."""
        self._retired_loras.append(key)
        self._drop_retired_loras()

    def _drop_retired_loras(self) -> None:
        in_use = {request.lora_key for request in self.scheduler.requests.values()}
        for key in [key for key in self._retired_loras if key not in in_use]:
            self._retired_loras.remove(key)
            if (slots := LoRASlots.of(self.scheduler)) is not None:
                slots.forget(key)
            self.executor.collective_rpc("remove_lora", key)

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache. Return False, and change nothing, while any request holds blocks."""
        if not self.scheduler.reset_prefix_cache():
            return False
        for observer in self.observers:
            observer.reset()
        return True

    def take_kv_events(self) -> list[KVEventBatch]:
        """Return the KV events since the last call; needs `kv_events_config={"publisher": "memory"}`."""
        publisher = self.kv_events and self.kv_events.publisher
        if not isinstance(publisher, MemoryPublisher):
            remedy = 'create the engine with kv_events_config={"publisher": "memory"}'
            raise ConfigError(f"KV events are not collected; {remedy}")
        return publisher.take()

    @property
    def is_dead(self) -> bool:
        return self._failure is not None

    def shutdown(self) -> None:
        """Close the observers and free the device's memory."""
        for observer in self.observers:
            observer.close()
        if self.grammars is not None:
            self.grammars.shutdown()
        self.executor.shutdown()
        self._failure = self._failure or RuntimeError("shutdown() was called")

    def check_alive(self) -> None:
        """Raise EngineDeadError, with the failure as its cause, if the engine is dead."""
        if self._failure is not None:
            what = _describe(self._failure)
            raise EngineDeadError(
                f"the engine is dead ({what}); create a new one to continue"
            ) from self._failure

    def _die(self, error: Exception) -> list[EngineCoreOutput]:
        """Mark the engine as dead; return an error output for every unfinished request."""
        self._failure = error
        logger.error("the engine died in a step", exc_info=error)
        for observer in self.observers:
            observer.error(error)
        message = f"the engine failed: {_describe(error)}"
        return [last_output(request, error=message) for request in self.scheduler.requests.values()]


@dataclass(slots=True)
class _StepUnderWay:
    """A step that the workers compute, with its plan and statistics."""

    out: SchedulerOutput
    bitmask: Future[GrammarBitmask] | None
    pending: PendingStep
    stats: StepStats
    began: float
    """Value of perf_counter when it was scheduled."""


def _connector_options(config: EngineConfig, executor: Executor) -> dict[str, Any]:
    """Start the worker half of the KV connector; return the scheduler half as an argument of the scheduler."""
    if (transfer := config.kv_transfer) is None:
        return {}
    [address] = executor.collective_rpc("init_kv_connector")
    connector = connector_class(transfer).make_scheduler(transfer, config.cache.block_size, address)
    policy = transfer.kv_load_failure_policy
    return {"make_resources": partial(default_resources, connector=connector, kv_load_failure_policy=policy)}


def _init_tiers(config: EngineConfig, executor: Executor) -> TierConfig:
    """Size the host memory for KV blocks and allocate it on every worker."""
    block_bytes = sum(executor.collective_rpc("block_bytes"))
    tiers = TierConfig.sized(config.memory, block_bytes, free_host_bytes())
    if tiers.num_host_blocks:
        executor.collective_rpc("init_host_pool", tiers.num_host_blocks)
    return tiers


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _make_tracer(config: EngineConfig, scheduler: Scheduler, debug: DebugPort | None) -> TraceWriter | None:
    wanted = trace_path(config.trace)
    if not wanted and debug is None:
        return None
    from engine.trace.files import unused_path
    from engine.trace.header import trace_header
    from engine.trace.writer import TraceWriter

    path = config.trace or (unused_path(wanted) if wanted else None)
    try:
        return TraceWriter(path, trace_header(config), scheduler, tap=debug)
    except TraceError:
        if debug is not None:
            debug.close()
        raise


def _open_debug_port(config: EngineConfig) -> DebugPort:
    from engine.debug.breakpoints import DebugError
    from engine.debug.port import DebugPort

    assert config.debug_port is not None
    try:
        port = DebugPort(config.debug_port, {"model": config.model.model})
    except DebugError as error:
        raise ConfigError(str(error)) from error
    if config.debug_wait:
        port.control.pause("it waits for a debugger (debug_wait)")
    return port
