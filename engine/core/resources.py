"""The admission resources that ship, in the order in which the scheduler asks them."""

from __future__ import annotations

from typing import Literal

from engine.config import SchedulerConfig
from engine.core.admission_resource import AdmissionResource
from engine.core.connector import KVConnectorScheduler
from engine.core.encoder_cache import EncoderCache
from engine.core.grammar_wait import GrammarWait
from engine.core.kv_manager import KVManager
from engine.core.kv_transfers import KVTransfers
from engine.core.lora_slots import LoRASlots


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
        resources.append(LoRASlots(config.max_loras))
    resources.append(EncoderCache(config.encoder_cache_size or config.max_num_batched_tokens))
    if connector is not None:
        resources.append(KVTransfers(kv, connector, kv_load_failure_policy))
    return resources
