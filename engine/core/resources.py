"""The admission resources that ship, in the order in which the scheduler asks them."""

from __future__ import annotations

from typing import Literal

from engine.config import SchedulerConfig
from engine.core.admission_resource import AdmissionResource
from engine.core.connector import KVConnectorScheduler
from engine.core.encoder_cache import EncoderCache
from engine.core.kv_manager import KVManager
from engine.core.kv_transfers import KVTransfers
from engine.core.lora_slots import LoRASlots
from engine.core.request import Request, RequestStatus
from engine.core.sched_output import ModelRunnerOutput, NotScheduled, Reason
from engine.core.stats import StepStats


class GrammarWait(AdmissionResource):
    """Keeps requests out of the batch while their grammar compiles.

    Compilation runs in a thread of its own (`engine/grammar/manager.py`) and ends between two steps. A request whose
    grammar cannot be compiled ends alone, with the compiler's error.
    Source: vLLM v1/core/sched/scheduler.py (WAITING_FOR_FSM).
    """

    def __init__(self) -> None:
        self.compiling: dict[str, Request] = {}
        """Waiting requests whose grammar is not ready, by id."""

    def add(self, request: Request) -> None:
        if request.grammar_future is not None and not _take_grammar(request):
            request.status = RequestStatus.WAITING_GRAMMAR
            self.compiling[request.request_id] = request

    def why_not(self, request: Request, stats: StepStats) -> NotScheduled | None:
        if request.status is not RequestStatus.WAITING_GRAMMAR:
            return None
        stats.num_grammar_waits += 1
        return NotScheduled(request.request_id, Reason.GRAMMAR_COMPILING)

    def finish(self, request: Request) -> None:
        self.compiling.pop(request.request_id, None)

    def end_step(self, result: ModelRunnerOutput, stats: StepStats) -> list[tuple[Request, str]]:
        failed = []
        for request in list(self.compiling.values()):
            future = request.grammar_future
            if _take_grammar(request):
                del self.compiling[request.request_id]
                request.status = RequestStatus.WAITING
            elif future is not None and future.done():
                failed.append((request, f"structured_outputs: {future.exception()}"))
        return failed

    def check_integrity(self, running: list[Request], waiting: list[Request]) -> list[str]:
        waits = {request.request_id for request in waiting if request.status is RequestStatus.WAITING_GRAMMAR}
        return [] if set(self.compiling) == waits else ["the compiling are not those that wait for a grammar"]


def _take_grammar(request: Request) -> bool:
    """Start a compiled grammar for its request. False if it is not compiled or does not compile."""
    future = request.grammar_future
    if future is None or not future.done() or future.exception() is not None:
        return False
    request.grammar, request.grammar_future = future.result().start(), None
    return True


def default_resources(
    config: SchedulerConfig,
    kv: KVManager,
    *,
    connector: KVConnectorScheduler | None = None,
    kv_load_failure_policy: Literal["recompute", "fail"] = "recompute",
) -> list[AdmissionResource]:
    """Return what the settings call for. KV transfers come last: they take blocks while they are asked."""
    resources: list[AdmissionResource] = [GrammarWait()]
    if config.max_loras:
        resources.append(LoRASlots(config.max_loras, config.max_cpu_loras, config.lora_prefetch))
    resources.append(EncoderCache(config.encoder_cache_size or config.max_num_batched_tokens))
    if connector is not None:
        resources.append(KVTransfers(kv, connector, kv_load_failure_policy))
    return resources
