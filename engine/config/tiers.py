"""Where KV goes that the device has no room for: host memory, and a folder behind it.

`swap_space` and `preemption_mode` are vLLM 0.6's (vllm/config.py, CacheConfig and SchedulerConfig);
`kv_offloading_size` and `kv_offloading_backend` are today's (vllm/config/cache.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.args import EngineArgs
from engine.config.errors import ConfigError, require_at_least

GIB = 1 << 30
DEFAULT_SWAP_SPACE = 4 * GIB
"""vLLM's, of which a quarter of the free memory is taken at most."""


@dataclass(frozen=True)
class TierConfig:
    """The tiers below the device's cache. The default is none of them."""

    num_host_blocks: int = 0
    """Blocks of host memory, as large as those of the device; shared by what is swapped and what is offloaded."""
    swap: bool = False
    """A preempted request's blocks are kept on the host instead of computed again (`preemption_mode="swap"`)."""
    offload: bool = False
    """Blocks that the device's prefix cache evicts are kept on the host (`kv_offloading_size`)."""
    block_bytes: int = 0
    """What a block takes, over all layers and workers; 0 if unknown. For counters alone."""

    def __post_init__(self) -> None:
        require_at_least(0, num_host_blocks=self.num_host_blocks, block_bytes=self.block_bytes)
        if (self.swap or self.offload) and not self.num_host_blocks:
            raise ConfigError("keeping blocks on the host needs host memory: num_host_blocks is 0")

    @classmethod
    def from_args(cls, args: EngineArgs, block_bytes: int, free_bytes: int) -> TierConfig:
        """What the user asked for, in blocks of `block_bytes`; `free_bytes` of host memory are free."""
        check_tier_args(args)
        swap = wants_swap(args)
        sizes = {
            "swap_space": _swap_bytes(args, free_bytes) if swap else 0,
            "kv_offloading_size": 0 if disk_folder(args) else int((args.kv_offloading_size or 0) * GIB),
        }
        for name, size in sizes.items():
            if 0 < size < block_bytes:
                raise ConfigError(
                    f"{name}={size / GIB:g} GiB holds no KV block: one takes {block_bytes / GIB:.2g} GiB; raise it"
                )
        if sum(sizes.values()) > free_bytes:
            asked = " and ".join(f"{name}={size / GIB:g}" for name, size in sizes.items() if size)
            raise ConfigError(
                f"{asked} (GiB) is more host memory than the {free_bytes / GIB:.1f} GiB that are free; lower it"
            )
        return cls(
            num_host_blocks=sum(size // block_bytes for size in sizes.values()),
            swap=swap,
            offload=sizes["kv_offloading_size"] > 0,
            block_bytes=block_bytes,
        )


def wants_swap(args: EngineArgs) -> bool:
    """Whoever gives swap space means to use it, unless they say recompute."""
    if args.preemption_mode is None:
        return bool(args.swap_space)
    return args.preemption_mode == "swap"


def check_tier_args(args: EngineArgs) -> None:
    """Refuse what no machine could make work."""
    if args.preemption_mode not in (None, "recompute", "swap"):
        raise ConfigError(f"preemption_mode must be recompute or swap, got {args.preemption_mode!r}")
    for name in ("swap_space", "kv_offloading_size"):
        size = getattr(args, name)
        is_number = isinstance(size, (int, float)) and not isinstance(size, bool)
        if size is not None and not (is_number and 0 <= size < float("inf")):
            raise ConfigError(f"{name} is host memory in GiB, a number that is not negative, got {size!r}")
    if args.preemption_mode == "swap" and args.swap_space == 0:
        raise ConfigError(
            "preemption_mode='swap' keeps blocks in host memory and swap_space=0 allows none; give swap_space in "
            "GiB, leave it out for the default (4 GiB or a quarter of what is free), or use 'recompute'"
        )
    backend = args.kv_offloading_backend
    if backend != "native" and not disk_folder(args):
        raise ConfigError(
            f"kv_offloading_backend={backend!r} does not exist here; use native (host memory) or disk:FOLDER"
        )
    if disk_folder(args) and not args.kv_offloading_size:
        raise ConfigError(
            f"kv_offloading_backend={backend!r} needs kv_offloading_size: the GiB that the folder may hold"
        )
    if disk_folder(args) and args.kv_transfer_config is not None:
        raise ConfigError(
            f"kv_offloading_backend={backend!r} is a KV connector, and kv_transfer_config names another; an "
            "engine has one"
        )


def disk_folder(args: EngineArgs) -> str:
    """The folder that `kv_offloading_backend="disk:FOLDER"` names; empty for another backend."""
    backend = args.kv_offloading_backend
    return backend.partition(":")[2] if isinstance(backend, str) and backend.startswith("disk:") else ""


def _swap_bytes(args: EngineArgs, free_bytes: int) -> int:
    if args.swap_space is None:
        return min(DEFAULT_SWAP_SPACE, free_bytes // 4)
    return int(args.swap_space * GIB)
