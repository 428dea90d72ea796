"""A worker's adapters: on disk, in host memory, and in the slots of its device.

    folder  --load_adapter-->  host cache (max_cpu_loras, LRU)  --activate-->  slot (max_loras)
                               fp32 matrices as they are                       zero-padded, in the model's dtype

The scheduler assigns slots (`engine/core/lora_slots.py`) and says what the host cache drops. An adapter that was
dropped is read from its folder again, and rejected if the folder has changed since: its key stands for the weights that
were loaded. Adapters that the scheduler fetches ahead are read by a thread (`prefetch.py`).
Source: vLLM lora/model_manager.py and worker_manager.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

from engine.config.features import LoRAConfig
from engine.core.sched_output import SchedulerOutput
from engine.layers.linear import Linear
from engine.lora.adapter import Adapter, Target, load_adapter
from engine.lora.layers import LoRALayer
from engine.lora.prefetch import Prefetcher
from engine.lora.request import LoRAError
from engine.zoo.manifest import digest_of

logger = logging.getLogger(__name__)


class LoRAManager:
    """Add LoRA slots to every linear layer of a model, and load adapters into them."""

    def __init__(
        self, model: nn.Module, config: LoRAConfig, *, device: torch.device, base_model: str = ""
    ) -> None:
        self.config = config
        self._base_model = base_model
        self._layers: dict[str, tuple[LoRALayer, int]] = {}
        """(layer, part) of every matrix, by its name in the checkpoint."""
        self.targets: dict[str, Target] = {}  # Matrices that an adapter may change
        for name, linear in model.named_modules():
            if not isinstance(linear, Linear) or name.startswith("lm_head"):
                continue  # adapters cannot change the output head
            dtype = linear.dtype if config.lora_dtype == "auto" else getattr(torch, config.lora_dtype)
            layer = LoRALayer(linear, config.max_loras, config.max_lora_rank, dtype, device)
            linear.lora = layer
            for part, part_name in enumerate(linear.part_names(name)):
                self._layers[part_name] = layer, part
                self.targets[part_name] = Target(linear.in_features, layer.lora_b[part].shape[1])
        self._sources: dict[str, tuple[Path, tuple[str, str]]] = {}
        """Folder and version of the loaded adapters, by key."""
        self.on_host: dict[str, Adapter] = {}
        self.slot_of: dict[str, int] = {}  # Slots of the adapters on the device, by key
        self._prefetcher = Prefetcher(self._read, self._fill)

    @property
    def num_slot_bytes(self) -> int:
        """Device memory of all slots."""
        return sum({id(layer): layer.num_bytes for layer, _ in self._layers.values()}.values())

    def add(self, key: str, folder: Path) -> int:
        """Read and check an adapter, or raise LoRAError; return its bytes in host memory."""
        version = _version(folder)
        self.on_host[key] = adapter = self._load(folder)
        self._sources[key] = folder, version
        return adapter.num_bytes

    def remove(self, key: str) -> None:
        """Unload an adapter that no request uses."""
        self._prefetcher.cancel(key)
        self._sources.pop(key, None)
        self.on_host.pop(key, None)
        self.slot_of.pop(key, None)

    def drop(self, keys: Iterable[str]) -> None:
        """Free host memory of adapters; they can be read again."""
        for key in keys:
            if self._prefetcher.is_filling(key):
                self._settle(key)
            self._prefetcher.cancel(key)
            self.on_host.pop(key, None)

    def begin_step(self, out: SchedulerOutput) -> None:
        """Fill slots and drop adapters as the step's plan says."""
        self.activate(out.lora_loads)
        self.drop(out.lora_drops)

    def fetch_ahead(self, prefetches: Iterable[tuple[str, int]]) -> None:
        """Start to fetch adapters, at the end of a step: a thread that reads would slow a step that loads."""
        for key, slot in prefetches:
            if slot >= 0:
                self._vacate(slot)
            self._prefetcher.start(key, slot)

    def activate(self, loads: Iterable[tuple[str, int]]) -> None:
        """Load adapters into slots. The slot of one that can no longer be read stays empty, and `slot_of` lacks it."""
        for key, slot in loads:
            self._vacate(slot)
            self._settle(key)
            try:
                adapter = self._read(key)
            except LoRAError as error:
                logger.error("adapter %s is lost: %s", key, error)
                continue
            self.on_host[key] = adapter
            self._fill(slot, adapter)
            self.slot_of[key] = slot

    def slot(self, key: str) -> int | None:
        """Return the slot of an adapter once its weights are there; None if they cannot be read."""
        self._settle(key)
        return self.slot_of.get(key)

    def shutdown(self) -> None:
        """End the thread that fetches ahead."""
        self._prefetcher.shutdown()

    def _vacate(self, slot: int) -> None:
        """Take the slot from its adapter."""
        for key in self._prefetcher.filling(slot):
            fetch = self._prefetcher.take(key)
            if fetch is not None and fetch.adapter is not None:
                self.on_host[key] = fetch.adapter
        self.slot_of = {other: taken for other, taken in self.slot_of.items() if taken != slot}

    def _settle(self, key: str) -> None:
        """Wait for an adapter that is being fetched ahead; fetch it now if that has not begun or has failed."""
        fetch = self._prefetcher.take(key)
        if fetch is None:
            return
        if fetch.adapter is not None:
            self.on_host[key] = fetch.adapter
            if fetch.slot >= 0:
                self.slot_of[key] = fetch.slot
        elif fetch.slot >= 0:
            self.activate([(key, fetch.slot)])

    def _read(self, key: str) -> Adapter:
        """Return an adapter from host memory or its folder, or raise LoRAError."""
        if (adapter := self.on_host.get(key)) is not None:
            return adapter
        if key not in self._sources:
            raise LoRAError("it was never loaded")
        folder, version = self._sources[key]
        if _version(folder) != version:
            raise LoRAError(f"{folder} has changed since it was loaded; load it again")
        return self._load(folder)

    def _fill(self, slot: int, adapter: Adapter) -> None:
        for layer in {id(layer): layer for layer, _ in self._layers.values()}.values():
            layer.clear(slot)
        for name, weights in adapter.parts.items():
            layer, part = self._layers[name]
            layer.fill(slot, part, weights)

    def _load(self, folder: Path) -> Adapter:
        return load_adapter(folder, self.targets, self.config.max_lora_rank, self._base_model)


def _version(folder: Path) -> tuple[str, str]:
    """Return the checksums of the weights and the configuration; times and sizes may stay when contents change."""
    try:
        weights = digest_of(folder / "adapter_model.safetensors")
    except OSError as error:
        raise LoRAError(
            f"{folder} is neither a shipped adapter (prep zoo list) nor a folder with adapter_model.safetensors "
            f"({error.strerror})"
        ) from None
    try:
        return weights, digest_of(folder / "adapter_config.json")
    except OSError:
        return weights, ""  # `load_adapter` says what is wrong with it
