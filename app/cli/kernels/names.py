"""Operations and backends as users type them, and how each backend runs on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Literal

from app.cli import terminal

ALIASES = {
    "attention": "paged_attention",
    "paged_decode": "paged_attention",
    "prefill": "paged_attention",
    "rmsnorm": "rms_norm",
    "rope": "rotary_embedding",
    "silu_mul": "silu_and_mul",
    "kv_write": "reshape_and_cache",
    "kv_copy": "copy_blocks",
    "gemm": "linear",
    "int4": "int4_linear",
    "w4a16": "int4_linear",
    "int8": "int8_linear",
    "fp8": "fp8_linear",
    "moe": "grouped_linear",
    "lora": "lora_shrink",
    "sampling": "sample",
    "penalties": "apply_penalties",
    "logprobs": "gather_logprobs",
    "bitmask": "apply_token_bitmask",
}
"""Common names of operations."""

INTERPRETED = (("TRITON_INTERPRET", "1"),)
"""Environment in which Triton runs kernels without a GPU."""


def operation(name: str) -> str:
    """Return the operation's name in `kernels/ops.py`, from any case, with dashes, or from an alias."""
    from kernels import registry

    plain = name.strip().lower().replace("-", "_")
    found = ALIASES.get(plain, plain)
    if found in registry.OPS:
        return found
    close = get_close_matches(plain, [*registry.OPS, *ALIASES], n=1)
    hint = f"did you mean {close[0]}?  " if close else ""
    raise terminal.Problem(
        f"unknown operation {name!r}; there are: {', '.join(registry.OPS)}",
        next_step=f"{hint}prep kernels list shows them all",
    )


def backends(name: str) -> list[str]:
    """Return one backend, or for "all" every one but the reference."""
    from kernels import registry

    plain = name.strip().lower()
    if plain == "all":
        return [each for each in registry.BACKENDS if each != "reference"]
    if plain in registry.BACKENDS:
        return [plain]
    raise terminal.Problem(f"unknown backend {name!r}; there are: {', '.join(registry.BACKENDS)}, all")


@dataclass(frozen=True)
class How:
    """How the kernels of a backend run on this machine."""

    state: Literal["native", "slow", "not"]
    """slow: on the CPU, thread by thread, for checking only."""
    text: str
    device: str = "cpu"
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that a process needs from its start."""


def how(backend: str) -> How:
    """Return how a backend runs here: natively, slowly for checking, or not at all and why."""
    import torch

    from kernels import registry

    gpu = torch.cuda.is_available()
    problem = registry.unavailable(backend)
    if backend == "reference":
        return How("native", "plain torch, runs everywhere", "cuda" if gpu else "cpu")
    if backend == "cpu":
        return How("native", _library()) if problem is None else How("not", problem)
    if gpu and problem is None:
        return How("native", torch.cuda.get_device_name(), "cuda")
    if backend == "cuda" and problem is None:
        return How("slow", "no GPU here: on a host shim, thread by thread")
    if backend == "triton" and not gpu and find_spec("triton") is not None:
        return How("slow", "no GPU here: in Triton's interpreter", environment=INTERPRETED)
    return How("not", problem or "")


def _library() -> str:
    from kernels.compile_report import load_library

    built = load_library()
    if built.build_seconds:
        return f"C++, compiled in {built.build_seconds:.1f} s"
    return f"C++, from {built.path}"
