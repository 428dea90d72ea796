"""The settings that a fork may change, and from which step on.

    knobs = parse_knobs({"max_num_batched_tokens": "256", "scheduling_policy": "priority"}, at=418)

Names are those of the engine's arguments. Settings of decisions can change at any step; settings of memory
(number and size of blocks) only before the first, because a running engine cannot change them either.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from engine.config import CacheConfig, ConfigError, SchedulerConfig, TierConfig
from engine.trace.format import TraceError
from engine.trace.protocol import Trace
from prep_common.names import unknown_name
from prep_common.text import GIB


@dataclass(frozen=True)
class Knob:
    """One setting that a fork may change."""

    name: str
    part: str  # the config that holds it: scheduler, cache or tiers
    field: str  # its name in that config
    kind: type
    live: bool  # True: can change at any step; False: only at step 0
    help: str


_BUDGET, _LONG = "max_num_batched_tokens", "long_prefill_token_threshold"
_CHUNKED, _CACHING = "enable_chunked_prefill", "enable_prefix_caching"
_KNOBS = (
    Knob(_BUDGET, "scheduler", _BUDGET, int, True, "token budget of a step"),
    Knob("max_num_seqs", "scheduler", "max_num_seqs", int, True, "maximum running requests"),
    Knob(
        _LONG,
        "scheduler",
        _LONG,
        int,
        True,
        "maximum tokens of one prompt per step; 0: only the budget limits them",
    ),
    Knob(_CHUNKED, "scheduler", _CHUNKED, bool, True, "prompts may be split"),
    Knob("scheduling_policy", "scheduler", "policy", str, True, "fcfs or priority"),
    Knob(_CACHING, "cache", _CACHING, bool, True, "computed blocks are reused"),
    Knob("preemption_mode", "tiers", "swap", str, True, "recompute, or swap (needs host blocks)"),
    Knob("num_blocks", "cache", "num_blocks", int, False, "KV blocks, including the null block"),
    Knob("block_size", "cache", "block_size", int, False, "tokens per block"),
    Knob("sliding_window", "cache", "sliding_window", int, False, "positions a token attends to; 0: all"),
    Knob(
        "max_loras", "scheduler", "max_loras", int, False, "maximum adapters that run at once; 0: any number"
    ),
    Knob("max_cpu_loras", "scheduler", "max_cpu_loras", int, False, "adapters in host memory; 0: max_loras"),
    Knob(
        "lora_prefetch", "scheduler", "lora_prefetch", int, False, "adapters of waiting requests read ahead"
    ),
    Knob("num_host_blocks", "tiers", "num_host_blocks", int, False, "blocks of host memory"),
    Knob("swap_space", "tiers", "num_host_blocks", float, False, "GiB of host memory, as blocks"),
)
KNOBS = {knob.name: knob for knob in _KNOBS}

_ALSO = {"policy": "scheduling_policy", "num_gpu_blocks_override": "num_blocks", "blocks": "num_blocks"}
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True)
class Settings:
    """The configuration of a scheduler."""

    scheduler: SchedulerConfig
    cache: CacheConfig

    def get(self, name: str) -> Any:
        """The value of a knob."""
        knob = KNOBS[name]
        if name == "preemption_mode":
            return "swap" if self.cache.tiers.swap else "recompute"
        if name == "swap_space":
            return round(self.cache.tiers.num_host_blocks * self.cache.tiers.block_bytes / GIB, 3)
        parts = {"scheduler": self.scheduler, "cache": self.cache, "tiers": self.cache.tiers}
        return getattr(parts[knob.part], knob.field)

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """These settings with some knobs changed, validated. Raises TraceError."""
        parts: dict[str, dict[str, Any]] = {"scheduler": {}, "cache": {}, "tiers": {}}
        for name, value in changes.items():
            knob = KNOBS[name]
            parts[knob.part][knob.field] = self._stored(name, value)
        if parts["tiers"].get("num_host_blocks") == 0:
            parts["tiers"].setdefault("swap", False)
        try:
            tiers = replace(self.cache.tiers, **parts["tiers"])
            cache = replace(self.cache, **parts["cache"], tiers=tiers)
            return Settings(replace(self.scheduler, **parts["scheduler"]), cache)
        except ConfigError as error:
            raise TraceError(str(error)) from error

    def _stored(self, name: str, value: Any) -> Any:
        """A knob's value as its config field stores it."""
        if name == "preemption_mode":
            return value == "swap"
        if name == "sliding_window":
            return value or None
        if name == "swap_space":
            block_bytes = self.cache.tiers.block_bytes
            if value and not block_bytes:
                raise TraceError(
                    "swap_space is in GiB, and the recording does not hold the bytes per block (its engine had no "
                    "host memory); set num_host_blocks instead"
                )
            return int(value * GIB) // block_bytes if value else 0
        return value


def read_settings(reader: Trace) -> Settings:
    """The recorded scheduler's settings. Raises TraceError if the file does not hold them."""
    config = reader.header.get("config") or {}
    if not ("scheduler" in config and "cache" in config):
        raise TraceError(
            f"{reader.path.name} does not hold its scheduler's settings, so it cannot run again: it was recorded by "
            "an older prep. Record the run again"
        )
    try:
        tiers = _known(TierConfig, _tiers(config["cache"].get("tiers", {})))
        cache = _known(CacheConfig, config["cache"]) | {"tiers": TierConfig(**tiers)}
        return Settings(SchedulerConfig(**_known(SchedulerConfig, config["scheduler"])), CacheConfig(**cache))
    except (ConfigError, TypeError, ValueError, SyntaxError) as error:
        where = f"the header of {reader.path.name}"
        raise TraceError(f"the settings in {where} are not valid: {error}") from error


def parse_knobs(given: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Values by knob name, converted from strings. Raises TraceError for an unknown knob or an invalid value."""
    changes = {}
    for word, value in given.items():
        knob = _find(word)
        if at and not knob.live:
            live = ", ".join(name for name, knob in KNOBS.items() if knob.live)
            raise TraceError(
                f"{knob.name} shapes the cache's memory, which a running engine cannot change: fork at step 0 "
                f"(--at 0) to set it. At step {at} you can set {live}"
            )
        changes[knob.name] = _parse(knob, value)
    return changes


def _find(word: str) -> Knob:
    name = word.strip().removeprefix("--").replace("-", "_")
    name = _ALSO.get(name, name)
    if name not in KNOBS:
        raise TraceError(unknown_name("a fork has no knob", name, KNOBS))
    return KNOBS[name]


def _parse(knob: Knob, value: Any) -> Any:
    text = str(value).strip()
    if knob.name == "preemption_mode" and text not in ("recompute", "swap"):
        raise TraceError(f"preemption_mode must be recompute or swap, got {text!r}")
    if knob.kind is str:
        return text
    if knob.kind is bool:
        if text.lower() in (*_TRUE, *_FALSE):
            return text.lower() in _TRUE
        raise TraceError(f"{knob.name} must be true or false, got {text!r}")
    try:
        number = knob.kind(text.replace("_", ""))
    except ValueError:
        what = "a whole number" if knob.kind is int else "a number"
        raise TraceError(f"{knob.name} must be {what}, got {text!r}") from None
    if not 0 <= number < float("inf"):
        raise TraceError(f"{knob.name} must be finite and not negative, got {text!r}")
    return number


def _known(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of existing fields: a file of another version may have more."""
    names = {f.name for f in fields(cls)}
    return {name: value for name, value in values.items() if name in names}


def _tiers(value: Any) -> dict[str, Any]:
    """Tier settings; older files hold them as the text of a call: TierConfig(num_host_blocks=12, swap=True)."""
    if not isinstance(value, str):
        return dict(value)
    call = ast.parse(value, mode="eval").body
    if not isinstance(call, ast.Call):
        raise ValueError(f"not tier settings: {value!r}")
    return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
