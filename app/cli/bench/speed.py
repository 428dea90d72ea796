"""`prep bench throughput`, `latency`, `startup`, `scheduler`, `parallel`: how fast the engine is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from app.cli import terminal
from app.cli.bench.against import Peer, compare, parse_lengths, show_shares
from app.cli.bench.common import run
from app.cli.engine_options import engine_options
from app.cli.options import JsonOption, ModelArgument, option, option_groups, parse_numbers
from prep_common.text import counted, duration

if TYPE_CHECKING:
    from app.bench.first_served import FirstServed
    from app.bench.latency import LatencyReport
    from app.bench.parallel import ParallelReport
    from app.bench.scheduler import SchedulerReport
    from app.bench.startup import StartupReport
    from app.bench.throughput import ThroughputReport


@engine_options
@option_groups
def throughput(
    model: ModelArgument = "shop",
    num_prompts: Annotated[int, option("Requests, all submitted at the start.", min=1)] = 128,
    input_len: Annotated[str, option("Prompt tokens of each (random ids), a number or a range.")] = "128-256",
    output_len: Annotated[str, option("Tokens generated for each, a number or a range.")] = "64-128",
    peer: Peer = Peer(),  # noqa: B008 - frozen
    rounds: Annotated[int, option("With --against: rounds of each engine.", min=1)] = 5,
    beside: Annotated[int, option("Busy programs to run meanwhile; each takes a core.", min=0, max=64)] = 0,
    json: JsonOption = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure tokens per second with full batches, and the time of a step by part.

    \b
    The work runs once unmodified, for the speed, and once with clocks inside the
    step, for the shares. The matrix products are then timed alone: the model's
    own weights, layer after layer, at the batch sizes that occurred. This is
    the lower bound of a step.

    \b
    With --against, both engines get the same requests, settings and threads,
    each in a separate process that is stopped while the other runs. Rounds
    alternate, and the ratio is that of the medians. vLLM runs with its defaults,
    compiled, with its engine core in the same process, so that threads are equal.

    \b
    The model dummy-386m is a shape with random weights: 896 wide, 24 layers,
    vocabulary 32,000.

    \b
    Examples:
      prep bench throughput
      prep bench throughput shop --num-prompts 256 --max-num-seqs 64 --json
      prep bench throughput dummy-386m --num-prompts 32 --output-len 32-64
      prep bench throughput --against vllm --vllm-python ~/vllm/bin/python
      prep bench throughput --against prep --peer-args '{"dtype": "bfloat16"}'
      prep bench throughput --against server --threads 1   what HTTP costs
      prep bench throughput --beside 1       while another program takes a core
    """
    from prep_common.busy import busy_programs

    work: dict[str, Any] = {
        "num_prompts": num_prompts,
        "input_len": parse_lengths("--input-len", input_len),
        "output_len": parse_lengths("--output-len", output_len),
    }
    if peer.is_asked():
        from app.bench.against import compare_throughput

        size: dict[str, Any] = {
            "num_seqs": num_prompts,
            "num_tokens": work["input_len"].high + work["output_len"].high,
        }
        then = (f"prep bench latency --against {peer.against}", "one request")
        with busy_programs(beside):
            compare(
                compare_throughput, peer, model, engine, json=json, then=then, rounds=rounds, **size, **work
            )
        return
    from app.bench.throughput import measure

    then = ("prep bench latency", "latency of a single user")
    with busy_programs(beside):
        run(
            lambda tell: measure(tell, model, engine, **work),
            show_throughput,
            json=json,
            then=then,
            takes="1 min",
        )


def show_throughput(report: ThroughputReport) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_row("  output tokens/s", f"[bold]{report.output_tokens_per_s:,.0f}[/]")
    table.add_row("  all tokens/s", f"{report.total_tokens_per_s:,.0f}")
    table.add_row("  requests/s", f"{report.requests_per_s:.2f}")
    table.add_row("  time in steps", f"{report.seconds:.2f} s")
    table.add_row("  steps", f"{report.steps}, of {report.mean_batch:.1f} requests on average")
    for name, share in (
        ("  model and sampling", report.execute_share),
        ("    matrix products alone", report.gemm_floor_share),
        ("  schedule", report.schedule_share),
        ("  update", report.update_share),
    ):
        table.add_row(name, f"{share:.1%} of that time" if share else "not measured")
    where = f"{report.device}, {report.dtype}, {report.threads} threads"
    terminal.show(
        f"{report.model} on {where}: {report.finished} of {report.num_prompts} requests, {report.input_len} tokens in, "
        f"{report.output_len} out",
        table,
    )
    if report.step_shares:
        show_shares(report.step_shares)


@engine_options
@option_groups
def latency(
    model: ModelArgument = "shop",
    batch_sizes: Annotated[
        str | None, option("Numbers of concurrent requests, comma-separated; 1,4,16,32 by default.")
    ] = None,
    input_len: Annotated[
        int | None, option("Prompt tokens of each: 128, or 64 with --against.", min=1)
    ] = None,
    output_len: Annotated[
        int | None, option("Tokens generated for each; 32, or 128 with --against.", min=2)
    ] = None,
    rounds: Annotated[
        int | None, option("Repetitions of each batch size: 3, or 9 with --against.", min=1)
    ] = None,
    peer: Peer = Peer(),  # noqa: B008 - frozen
    json: JsonOption = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure the time to the first token (TTFT) and between tokens (ITL), for requests that start together.

    \b
    With --against: tokens per second of a single request, in both engines
    in turn.

    \b
    Examples:
      prep bench latency shop --batch-sizes 1,8,64
      prep bench latency --against vllm --vllm-python ~/vllm/bin/python
    """
    if peer.is_asked():
        if batch_sizes not in (None, "1"):
            raise terminal.Problem("--against measures a single request: leave --batch-sizes out")
        from app.bench.against import compare_single

        work: dict[str, Any] = {"input_len": input_len or 64, "output_len": output_len or 128}
        then = (f"prep bench startup --against {peer.against}", "to the first token")
        size: dict[str, Any] = {"num_seqs": 1, "num_tokens": sum(work.values())}
        compare(compare_single, peer, model, engine, json=json, then=then, rounds=rounds or 9, **size, **work)
        return
    from app.bench.latency import measure

    settings: dict[str, Any] = {
        "batch_sizes": parse_numbers("--batch-sizes", batch_sizes or "1,4,16,32"),
        "input_len": input_len or 128,
        "output_len": output_len or 32,
        "rounds": rounds or 3,
    }
    then = ("prep bench scheduler", "time of a step without a model")
    run(lambda tell: measure(tell, model, engine, **settings), show_latency, json=json, then=then)


def show_latency(report: LatencyReport) -> None:
    table = terminal.table("at once", "TTFT p50", "p90", "p99", "ITL p50", "p90", "p99", "tokens/s")
    for row in report.batches:
        times = (row.ttft.p50, row.ttft.p90, row.ttft.p99, row.itl.p50, row.itl.p90, row.itl.p99)
        table.add_row(str(row.batch_size), *(f"{ms:.1f}" for ms in times), f"{row.output_tokens_per_s:,.0f}")
    size = f"{counted(report.input_len, 'token')} in, {report.output_len} out"
    terminal.show(f"{report.model}: {size}, {counted(report.rounds, 'round')} (ms)", table)


@option_groups
def startup(
    model: ModelArgument = "shop",
    runs: Annotated[int, option("Processes to time, after one uncounted.", min=1)] = 3,
    served: Annotated[
        bool, option("Time a request that finds a cold, warm, sleeping or ready server.", "--served")
    ] = False,
    peer: Peer = Peer(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Measure the start of a process up to its first token, phase by phase.

    \b
    The last line is for a machine on which the C++ kernels are not compiled yet.
    With --against: to the first token of a text prompt, in both engines in turn.
    With --served: from a request to its first token over HTTP. No process runs
    (a fleet at zero replicas starts one), one waits in the fleet's warm pool, an
    engine sleeps and is woken up, or a replica is ready. Takes about a minute.

    \b
    Examples:
      prep bench startup --runs 5
      prep bench startup --against vllm --vllm-python ~/vllm/bin/python
      prep bench startup --served
    """
    then = ("prep bench throughput", "what it does once it runs")
    if served:
        return measure_served(model, runs, json)
    if peer.is_asked():
        from app.bench.against import compare_startup

        size: dict[str, Any] = {"num_seqs": 1, "num_tokens": 1}
        compare(
            compare_startup, peer, model, {}, with_tokenizer=True, json=json, then=then, runs=runs, **size
        )
        return
    from app.bench.startup import measure
    from engine.config.model import ModelArgs
    from engine.models.hf_config import find_model

    find_model(ModelArgs(model=model))  # a wrong name is an error here, not in the process that is measured
    run(lambda tell: measure(tell, model, runs=runs), show_startup, json=json, then=then)


def measure_served(model: str, runs: int, json: bool) -> None:
    """Measure the time to the first served token, by the state of the server."""
    terminal.need_libraries("a fleet needs", ["starlette", "uvicorn", "httpx"], "fleet", "serve")
    from app.bench import first_served
    from engine.models.hf_config import local_folder

    local_folder(model)  # a name without a model is refused before anything starts
    then = ("prep fleet up engine/fleet/example.yaml", "a fleet to try; warm_pool in its settings")
    run(lambda tell: first_served.measure(tell, model, runs=runs), show_served, json=json, then=then)


def show_served(report: FirstServed) -> None:
    rows = [
        (state, duration(seconds), len(report.seconds[state])) for state, seconds in report.medians.items()
    ]
    title = f"{report.model}: from a request to its first token, median"
    terminal.show(title, terminal.table("the request finds", "first token", "runs", rows=rows))


def show_startup(report: StartupReport) -> None:
    rows = [(name, f"{seconds:.2f}") for name, seconds in report.phases.items()]
    rows.append(("[bold]whole process[/]", f"[bold]{report.total:.2f}[/]"))
    rows.append(("whole process without compiled kernels", f"{report.total_without_kernels:.2f}"))
    title = f"{report.model}: median of {len(report.runs)} fresh processes"
    terminal.show(title, terminal.table("phase", "seconds", rows=rows))


def scheduler(
    requests: Annotated[int, option("Requests that decode in each step.", min=1)] = 256,
    steps: Annotated[int, option("Steps to time for each figure.", min=1)] = 300,
    json: JsonOption = False,
) -> None:
    """Measure the scheduler's time per step, with an empty and with a long queue.

    A fake worker answers at once: no model is loaded, only Python runs.

    Example: prep bench scheduler --requests 256
    """
    from app.bench.scheduler import measure

    then = ("prep bench throughput", "the share of the model in a step")
    run(lambda tell: measure(tell, requests=requests, steps=steps), show_scheduler, json=json, then=then)


def show_scheduler(report: SchedulerReport) -> None:
    if report.decode is not None:
        table = terminal.table("", "median", "p90", "p99", "max")
        for name in ("schedule", "update", "total"):
            times = getattr(report.decode, name)
            table.add_row(name, *(f"{value:.2f}" for value in (times.p50, times.p90, times.p99, times.max)))
        terminal.show(f"{report.decode.requests} decodes per step, empty queue (ms)", table)
    if report.queues:
        table = terminal.table("waiting", "because", "median", "p99", "µs to add one", left=("because",))
        for row in report.queues:
            figures = (f"{row.total.p50:.2f}", f"{row.total.p99:.2f}", f"{row.add_us:.1f}")
            table.add_row(f"{row.waiting:,}", row.blocked_by, *figures)
        terminal.show("the same with requests waiting (ms per step)", table)


@engine_options
def parallel(
    model: ModelArgument = "shop",
    requests: Annotated[int, option("Requests that run at once.", min=1)] = 8,
    output_len: Annotated[int, option("Tokens generated for each.", min=2)] = 32,
    json: JsonOption = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Compare one process with several ranks: tokens, collectives, bytes, bubble, time on real links.

    Without a split, --tensor-parallel-size 2 is used.

    \b
    Examples:
      prep bench parallel shop --tensor-parallel-size 2
      prep bench parallel shop --pipeline-parallel-size 2 --requests 1
    """
    from app.bench.parallel import measure

    if engine["tensor_parallel_size"] * engine["pipeline_parallel_size"] == 1:
        terminal.err().print("[dim]no split given: --tensor-parallel-size 2 is used[/]")
        engine["tensor_parallel_size"] = 2
    title = f"{model}: {counted(requests, 'request')}"
    report = run(
        lambda tell: measure(tell, model, engine, num_requests=requests, output_len=output_len),
        lambda results: show_parallel(results, title),
        json=json,
        then=("prep sim run --help", "the same on GPUs you do not have"),
    )
    if not report.same_tokens:
        raise typer.Exit(terminal.CHECKS_FAILED)


def show_parallel(report: ParallelReport, title: str) -> None:
    rows = [
        ("same tokens", "yes" if report.same_tokens else "NO"),
        ("steps", report.num_steps),
        ("collectives per step (answering rank)", f"{report.collectives_per_step:.1f}"),
        ("bytes per token (answering rank)", f"{report.bytes_per_token:,.0f}"),
        ("bubble", f"{report.bubble:.0%}"),
        ("time, one process / split", f"{report.seconds_alone:.2f} / {report.seconds_split:.2f} s"),
    ]
    by_link = report.decode_step_ms_by_link.items()
    rows += [(f"a decode step's messages over {name}", f"{ms:.3f} ms") for name, ms in by_link]
    terminal.show(title, terminal.table("what", "figure", rows=rows))
