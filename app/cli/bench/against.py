"""The options and tables of `prep bench ... --against`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from app.bench.timing import Tell
from app.cli import terminal
from app.cli.bench.common import run
from app.cli.options import option, parse_json_object
from prep_common.text import counted

if TYPE_CHECKING:
    from app.bench.against import Comparison, Pair
    from app.bench.settings import Job, OtherEngine
    from app.bench.side import SideSpec
    from app.bench.turns import SideReport
    from app.bench.workload import Lengths
OURS = ("prep", "server", "vllm-server")
"""Other sides with our engine, or with HTTP between."""


@dataclass(frozen=True)
class Peer:
    """Options for the other side of a comparison."""

    against: Annotated[
        str | None,
        option(
            "Compare in turn with vllm; vllm-processes, vLLM as it comes; llama.cpp; transformers; prep, a second "
            "copy of this engine; server, this engine behind HTTP; vllm-server, both behind HTTP."
        ),
    ] = None
    vllm_python: Annotated[
        str | None,
        option(
            "With --against: the Python interpreter of vLLM's environment. llama.cpp's is in PREP_LLAMA_CPP_PYTHON.",
            envvar="PREP_VLLM_PYTHON",
        ),
    ] = None
    peer_args: Annotated[
        str | None, option("With --against: JSON with engine arguments for the other side only.")
    ] = None
    threads: Annotated[
        int | None, option("With --against: threads of each engine; by default one per core.", min=1)
    ] = None

    def is_asked(self) -> bool:
        """Whether there is another side. Raises Problem without one for options that mean nothing then."""
        if self.against is not None:
            return True
        if self.threads is not None:
            raise terminal.Problem("--threads needs --against", f"OMP_NUM_THREADS={self.threads} sets ours")
        if self.peer_args is not None:
            raise terminal.Problem("--peer-args needs --against", "--against prep")
        return False


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
    """Return both sides with the same settings. `stack` holds a dummy's folder and converted checkpoints."""
    from app.bench.against import Pair, default_threads
    from app.bench.models import bench_model
    from app.bench.settings import OTHER_ENGINES, common_settings, complete_job
    from app.bench.side import PREP_SERVER, prep_spec, server_spec

    known = (*OTHER_ENGINES, *OURS)
    against, given = peer.against or "", peer.peer_args
    if against not in known:
        raise terminal.Problem(f"--against takes {', '.join(known[:-1])} or {known[-1]}, got {against!r}")
    only_theirs = {} if given is None else parse_json_object("--peer-args", given, '{"enforce_eager": true}')
    python = _python(against, peer.vllm_python)
    has_server, other = against.endswith("server"), OTHER_ENGINES.get(against)
    if with_tokenizer and other is not None and other.needs_checkpoint:
        raise terminal.Problem(
            f"{against} is not compared here: its side takes token ids, not text",
            f"prep bench throughput --against {against}",
        )

    with_files = other is not None and other.needs_checkpoint
    folder, engine = stack.enter_context(bench_model(model, engine, with_weights=with_files))
    if not with_tokenizer and not has_server:
        engine = {**engine, "skip_tokenizer_init": True}
    scratch = Path(stack.enter_context(TemporaryDirectory(prefix="prep-bench-")))
    job = complete_job(folder, engine, num_seqs=num_seqs, num_tokens=num_tokens, scratch=scratch)
    ours = prep_spec(job.engine)
    if other is not None:
        theirs = _checked_side(other, python, job)
        theirs = replace(theirs, engine={**theirs.engine, **only_theirs})
    elif against == "vllm-server":
        command = [str(Path(python).with_name("vllm")), "serve"]
        ours = server_spec(PREP_SERVER, job.engine, name="prep")
        theirs = server_spec(command, {**common_settings(job), **only_theirs}, name="vLLM")
    elif has_server:
        theirs = server_spec(PREP_SERVER, {**job.engine, **only_theirs}, name="over HTTP")
    else:
        theirs = prep_spec({**job.engine, **only_theirs}, name="prep again")
    threads = peer.threads or default_threads()
    return Pair(model, str(job.config.path), job.config.vocab_size, threads, ours, theirs)


def _python(against: str, vllm_python: str | None) -> str:
    """Return the interpreter of another engine's environment. Raises Problem with instructions if it has none."""
    from app.bench.environments import VLLM, MissingEngine, python_of
    from app.bench.settings import OTHER_ENGINES

    if against.startswith("vllm"):
        environment, given = VLLM, vllm_python
    elif against in OTHER_ENGINES:
        environment, given = OTHER_ENGINES[against].environment, None
    else:
        return ""
    try:
        return python_of(environment, given)
    except MissingEngine as error:
        raise terminal.Problem(
            f"--against {against}: {error}", error.make, code=terminal.ENVIRONMENT
        ) from None


def _checked_side(other: OtherEngine, python: str, job: Job) -> SideSpec:
    try:
        return other.side(python, job)
    except ValueError as error:
        raise terminal.Problem(str(error)) from None


def parse_lengths(flag: str, text: str) -> Lengths:
    from app.bench.workload import Lengths

    try:
        return Lengths.parse(text)
    except ValueError as error:
        example = "64-128" if "output" in flag else "128-256"
        raise terminal.Problem(f"{flag}: {error}", f"{flag} {example}") from None


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
        f"  [bold]{report.ratio:.2f} x[/] ({low:.2f} to {high:.2f} in "
        f"{counted(len(report.round_ratios), 'round')}){by_cpu}"
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
    """Print the share of each part of a step; parts that others do in the same pass have none."""
    from app.bench.step_profile import PARTS

    rows = [(words, f"{shares[part]:.1%}") for part, words in PARTS.items() if shares[part]]
    whole = shares["gemm"] + shares["attention"]
    rows.append(("[bold]matrix products and attention[/]", f"[bold]{whole:.1%}[/]"))
    table = terminal.table("part of a step", "share", rows=rows)
    terminal.show("where the time of our steps goes", table)
