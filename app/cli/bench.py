"""`prep bench`: what `app.bench` measures, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli import screen
from app.cli.bench_against import (
    Against,
    Peer,
    PeerArgs,
    Threads,
    VllmPython,
    as_json,
    comparing,
    parse_lengths,
    resolve_pair,
    show_comparison,
    show_shares,
)
from app.cli.engine_options import engine_options

if TYPE_CHECKING:
    from app.bench.against import Comparison
    from app.bench.grammar import GrammarReport
    from app.bench.latency import LatencyReport
    from app.bench.lora import LoRAReport
    from app.bench.quantization import QuantizationReport
    from app.bench.scheduler import SchedulerReport
    from app.bench.speculation import SpeculationReport
    from app.bench.startup import StartupReport
    from app.bench.throughput import ThroughputReport
    from app.bench.tiers import TierReport
    from app.bench.timing import Tell

app = screen.command_app(no_args_is_help=True)

Model = Annotated[str, typer.Argument(help="A shipped model, a folder, or a Hugging Face id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.callback()
def bench() -> None:
    """Benchmarks of the engine. Ctrl-C ends one early and prints what it has."""


@contextmanager
def status() -> Iterator[Tell]:
    """A line on stderr that says what is being measured; silent where nobody watches."""
    console = screen.err()
    if not screen.is_live(console):
        yield lambda text: None
        return
    with console.status("starting") as line:
        yield lambda text: line.update(f"[dim]{text}[/]")


def finish(report: Any, *, as_json: bool, next_command: str, why: str, printed: bool = False) -> None:
    """JSON if asked for, the closing line otherwise, and the exit code of a benchmark that was cut short."""
    if as_json and not printed:
        screen.print_json(report)
    if report.interrupted:
        screen.err().print("[yellow]interrupted: only what was measured until then[/]")
        raise typer.Exit(screen.INTERRUPTED)
    if not as_json:
        screen.next_command(next_command, why)


def finish_comparison(report: Comparison, *, json: bool, next_command: str, why: str) -> None:
    if json:
        screen.print_json(as_json(report))
    else:
        show_comparison(report)
    finish(report, as_json=json, next_command=next_command, why=why, printed=True)


@app.command()
def scheduler(
    requests: Annotated[
        int, typer.Option("--requests", min=1, help="Requests that decode in each step.")
    ] = 256,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps to time for each figure.")] = 300,
    json: Json = False,
) -> None:
    """What a step costs the scheduler, and whether it depends on how many requests wait.

    The worker is a stand-in that answers at once: no model is loaded, only Python runs.

    Example: prep bench scheduler --requests 256
    """
    from app.bench.scheduler import measure

    with status() as tell:
        report = measure(tell, requests=requests, steps=steps)
    if not json:
        show_scheduler(report)
    finish(report, as_json=json, next_command="prep bench throughput", why="how much of a step is the model")


def show_scheduler(report: SchedulerReport) -> None:
    if report.decode is not None:
        table = screen.table("", "median", "p90", "p99", "max")
        for name in ("schedule", "update", "total"):
            times = getattr(report.decode, name)
            table.add_row(name, *(f"{value:.2f}" for value in (times.p50, times.p90, times.p99, times.max)))
        screen.show(f"{report.decode.requests} decodes per step, nobody waiting (ms)", table)
    if report.queues:
        table = screen.table("waiting", "because", "median", "p99", "µs to add one", left=("because",))
        for row in report.queues:
            figures = (f"{row.total.p50:.2f}", f"{row.total.p99:.2f}", f"{row.add_us:.1f}")
            table.add_row(f"{row.waiting:,}", row.blocked_by, *figures)
        screen.show("the same with requests waiting (ms per step)", table)


@app.command()
@engine_options
def throughput(
    model: Model = "shop",
    num_prompts: Annotated[int, typer.Option(min=1, help="Requests, all there from the start.")] = 128,
    input_len: Annotated[
        str, typer.Option(help="Prompt tokens of each (random ids), a number or a range.")
    ] = "128-256",
    output_len: Annotated[
        str, typer.Option(help="Tokens generated for each, a number or a range.")
    ] = "64-128",
    against: Against = None,
    vllm_python: VllmPython = None,
    peer_args: PeerArgs = None,
    rounds: Annotated[int, typer.Option(min=1, help="With --against: rounds of each engine.")] = 5,
    threads: Threads = None,
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Tokens per second with full batches, and where the time of a step goes.

    \b
    The work runs once as it is, for the speed, and once with clocks inside the
    step, for the shares. The matrix products are then timed alone: the model's
    own weights, layer after layer, at the batch sizes that occurred. That is
    the floor under a step.

    \b
    With --against, both engines get the same requests, settings and threads,
    each in a process of its own that is stopped while the other runs. Rounds
    alternate, and the ratio is that of the medians. vLLM runs as it comes,
    compiled, with its engine core in one process: so it has as many threads.

    \b
    The model dummy-386m is a shape with random weights: 896 wide, 24 layers,
    vocabulary 32,000.

    \b
    Examples:
      prep bench throughput
      prep bench throughput shop --num-prompts 256 --max-num-seqs 64 --json
      prep bench throughput dummy-386m --num-prompts 32 --output-len 32-64
      prep bench throughput --against vllm --vllm-python ~/vllm/bin/python
      prep bench throughput --against prep \\
                            --peer-args '{"attention_backend": "sdpa"}'
    """
    work = {
        "num_prompts": num_prompts,
        "input_len": parse_lengths("--input-len", input_len),
        "output_len": parse_lengths("--output-len", output_len),
    }
    if against is not None:
        from app.bench.against import compare_throughput

        num_tokens = work["input_len"].high + work["output_len"].high
        peer = Peer(against, vllm_python, peer_args, threads)
        with status() as tell, comparing() as stack:
            pair = resolve_pair(
                stack,
                peer,
                model,
                engine,
                num_seqs=num_prompts,
                num_tokens=num_tokens,
            )
            comparison = compare_throughput(
                tell,
                pair,
                rounds=rounds,
                **work,
            )
        finish_comparison(
            comparison, json=json, next_command=f"prep bench latency --against {against}", why="one request"
        )
        return
    from app.bench.throughput import measure

    with status() as tell:
        report = measure(tell, model, engine, **work)
    if not json:
        show_throughput(report)
    finish(report, as_json=json, next_command="prep bench latency", why="what a single user feels")


def show_throughput(report: ThroughputReport) -> None:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_row("  output tokens/s", f"[bold]{report.output_tokens_per_s:,.0f}[/]")
    table.add_row("  all tokens/s", f"{report.total_tokens_per_s:,.0f}")
    table.add_row("  requests/s", f"{report.requests_per_s:.2f}")
    table.add_row("  time in steps", f"{report.seconds:.2f} s")
    table.add_row("  steps", f"{report.steps}, of {report.mean_batch:.1f} requests on average")
    shares = {
        "  model and sampling": report.execute_share,
        "    matrix products alone": report.gemm_floor_share,
        "  schedule": report.schedule_share,
        "  update": report.update_share,
    }
    for name, share in shares.items():
        table.add_row(name, f"{share:.1%} of that time" if share else "not measured")
    where = f"{report.device}, {report.dtype}, {report.threads} threads"
    screen.show(
        f"{report.model} on {where}: {report.finished} of {report.num_prompts} requests, {report.input_len} tokens in, "
        f"{report.output_len} out",
        table,
    )
    if report.step_shares:
        show_shares(report.step_shares)


@app.command()
@engine_options
def latency(
    model: Model = "shop",
    batch_sizes: Annotated[
        str | None, typer.Option(help="How many requests at once, comma-separated; 1,4,16,32 by default.")
    ] = None,
    input_len: Annotated[
        int | None, typer.Option(min=1, help="Prompt tokens of each: 128, or 64 with --against.")
    ] = None,
    output_len: Annotated[
        int | None, typer.Option(min=2, help="Tokens generated for each; 32, or 128 with --against.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Repetitions of each batch size: 3, or 9 with --against.")
    ] = None,
    against: Against = None,
    vllm_python: VllmPython = None,
    peer_args: PeerArgs = None,
    threads: Threads = None,
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Time to the first token (TTFT) and between tokens (ITL), for requests that start together.

    \b
    With --against: tokens per second of one request by itself, in both engines
    in turn.

    \b
    Examples:
      prep bench latency shop --batch-sizes 1,8,64
      prep bench latency --against vllm --vllm-python ~/vllm/bin/python
    """
    if against is not None:
        if batch_sizes not in (None, "1"):
            raise screen.Problem("with --against, latency is that of one request: leave --batch-sizes out")
        from app.bench.against import compare_single

        input_len, output_len = input_len or 64, output_len or 128
        peer = Peer(against, vllm_python, peer_args, threads)
        with status() as tell, comparing() as stack:
            pair = resolve_pair(
                stack,
                peer,
                model,
                engine,
                num_seqs=1,
                num_tokens=input_len + output_len,
            )
            comparison = compare_single(
                tell,
                pair,
                input_len=input_len,
                output_len=output_len,
                rounds=rounds or 9,
            )
        finish_comparison(
            comparison,
            json=json,
            next_command=f"prep bench startup --against {against}",
            why="to the first token",
        )
        return
    from app.bench.latency import measure

    try:
        sizes = tuple(int(part) for part in (batch_sizes or "1,4,16,32").split(","))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 1:
        raise screen.Problem(
            f"--batch-sizes must be whole numbers of at least 1, got {batch_sizes!r}",
            next_step="--batch-sizes 1,8,64",
        )
    with status() as tell:
        report = measure(
            tell,
            model,
            engine,
            batch_sizes=sizes,
            input_len=input_len or 128,
            output_len=output_len or 32,
            rounds=rounds or 3,
        )
    if not json:
        show_latency(report)
    finish(report, as_json=json, next_command="prep bench scheduler", why="what a step costs without a model")


def show_latency(report: LatencyReport) -> None:
    table = screen.table("at once", "TTFT p50", "p90", "p99", "ITL p50", "p90", "p99", "tokens/s")
    for row in report.batches:
        times = (row.ttft.p50, row.ttft.p90, row.ttft.p99, row.itl.p50, row.itl.p90, row.itl.p99)
        table.add_row(str(row.batch_size), *(f"{ms:.1f}" for ms in times), f"{row.output_tokens_per_s:,.0f}")
    screen.show(
        f"{report.model}: {report.input_len} tokens in, {report.output_len} out, {report.rounds} rounds (ms)",
        table,
    )


@app.command()
@engine_options
def speculation(
    model: Model = "shop",
    method: Annotated[
        str, typer.Option(help="Drafters to compare, comma-separated: ngram, draft_model, eagle.")
    ] = "ngram,draft_model,eagle",
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Drafts per request and step.")] = 4,
    batch_sizes: Annotated[
        str, typer.Option(help="Requests at once, comma-separated numbers.")
    ] = "1,2,4,8,16,32,64",
    workload: Annotated[
        str, typer.Option(help="Comma-separated: repetitive, json, free.")
    ] = "repetitive,json,free",
    requests: Annotated[int, typer.Option("--requests", min=1, help="Requests of each workload.")] = 64,
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """What drafts are worth: speed with and without, acceptance, and the batch size at which they become a loss.

    \b
    An engine without drafts and one for each method answer the same requests in
    turns, in one process. Steps that compute prompts are left out. With
    --speculative-config, that drafter is measured instead of --method.

    \b
    Examples:
      prep bench speculation --method ngram --batch-sizes 1
      prep bench speculation --workload json --tokens 6
      prep bench speculation --speculative-config \\
          '{"method": "ngram", "num_speculative_tokens": 8, "adaptive": true}'
    """
    from app.bench.speculation import WORKLOADS, configs, measure
    from engine.config import SpeculativeConfig

    sizes = parse_counts("--batch-sizes", batch_sizes)
    workloads = workload.split(",")
    if unknown := [name for name in workloads if name not in WORKLOADS]:
        raise screen.Problem(f"no workload {unknown[0]!r}", next_step=f"--workload {','.join(WORKLOADS)}")
    own = SpeculativeConfig.parse(engine.pop("speculative_config"))
    drafters = configs(method.split(","), tokens) if own is None else {own.method: own}
    with status() as tell:
        report = measure(
            tell, model, engine, drafters, workloads=workloads, batch_sizes=sizes, requests=requests
        )
    if not json:
        show_speculation(report)
    finish(report, as_json=json, next_command="prep bench latency", why="time to the first token")


def parse_counts(flag: str, text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise screen.Problem(
            f"{flag} must be whole numbers of at least 1, got {text!r}", next_step=f"{flag} 1,8,64"
        )
    return counts


def show_speculation(report: SpeculationReport) -> None:
    table = screen.table(
        "workload", "drafts by", "at once", "tokens/s", "without", "speed-up", "tokens per step",
        "accepted", "at each position", "same tokens", left=("drafts by",),
    )  # fmt: skip
    for result in report.results:
        table.add_row(
            result.workload,
            result.method,
            str(result.batch_size),
            f"{result.tokens_per_s:,.0f}",
            f"{result.plain_tokens_per_s:,.0f}",
            f"[bold]{result.speedup:.2f} x[/]",
            f"{result.tokens_per_step:.2f}",
            f"{result.acceptance:.0%}",
            " ".join(f"{share:.2f}" for share in result.acceptance_per_pos),
            "yes" if result.is_identical else "[red]no[/]",
        )
    screen.show(f"{report.model}: up to {report.num_speculative_tokens} drafts per request and step", table)
    for workload, method in dict.fromkeys((result.workload, result.method) for result in report.results):
        size = report.break_even(workload, method)
        where = "at none of these batch sizes" if size is None else f"from {size} at once on"
        screen.out().print(f"  {method}, {workload}: a loss {where}")


@app.command()
@engine_options
def swap(
    model: Model = "shop",
    lengths: Annotated[
        str, typer.Option(help="Prompt lengths in tokens, comma-separated.")
    ] = "64,128,256,512,1000",
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions of each length.")] = 5,
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Swap against recompute, and what a prefix costs on the device, the host and a disk.

    \b
    Examples:
      prep bench swap shop
      prep bench swap shop --lengths 128,512,1000 --rounds 9 --json
    """
    from app.bench.tiers import measure

    with status() as tell:
        report = measure(tell, model, engine, lengths=_prompt_lengths(lengths), rounds=rounds)
    if not json:
        show_tiers(report)
    finish(
        report,
        as_json=json,
        next_command="prep generate shop 'Hello' --preemption-mode swap",
        why="use it",
    )


def _prompt_lengths(text: str) -> list[int]:
    try:
        return [int(length) for length in text.split(",")]
    except ValueError:
        raise screen.Problem(
            f"--lengths: {text!r} is not a list of numbers", next_step="--lengths 128,512"
        ) from None


def show_tiers(report: TierReport) -> None:
    table = screen.table("prompt", "computed", "device", "host", "disk", "swap out", "swap in", "recompute")
    for row in report.rows:
        times = (*row.first_token.values(), row.copy_out, row.copy_in, row.recompute)
        table.add_row(str(row.prompt_len), *(f"{ms:.2f}" for ms in times))
    screen.show(f"{report.model}: first token by where the prompt's KV was, and one preemption (ms)", table)
    verdict = (
        "never on this machine"
        if report.break_even is None
        else f"from {report.break_even} tokens on (measured)"
    )
    screen.out().print(
        f"Per 1,000 tokens: swap {report.swap_ms_per_1k:.2f} ms, recompute {report.recompute_ms_per_1k:.2f} ms. "
        f"Swap is cheaper {verdict}."
    )
    if report.misses:
        screen.err().print(
            f"[yellow]{report.misses} runs found their prefix somewhere else and were not counted[/]"
        )


@app.command()
def startup(
    model: Model = "shop",
    runs: Annotated[int, typer.Option(min=1, help="Processes to time, after one that is not counted.")] = 3,
    against: Against = None,
    vllm_python: VllmPython = None,
    peer_args: PeerArgs = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """From an empty process to the first tokens, phase by phase.

    \b
    With --against: to the first token of a text prompt, in both engines in turn.

    \b
    Examples:
      prep bench startup --runs 5
      prep bench startup --against vllm --vllm-python ~/vllm/bin/python
    """
    if against is not None:
        from app.bench.against import compare_startup

        peer = Peer(against, vllm_python, peer_args, threads)
        with status() as tell, comparing() as stack:
            pair = resolve_pair(
                stack,
                peer,
                model,
                {},
                num_seqs=1,
                num_tokens=1,
                with_tokenizer=True,
            )
            comparison = compare_startup(tell, pair, runs=runs)
        finish_comparison(
            comparison, json=json, next_command="prep bench throughput", why="what it does once it runs"
        )
        return
    from app.bench.startup import measure

    with status() as tell:
        report = measure(tell, model, runs=runs)
    if not json:
        show_startup(report)
    finish(report, as_json=json, next_command="prep bench throughput", why="what it does once it runs")


def show_startup(report: StartupReport) -> None:
    table = screen.table("phase", "seconds")
    for name, seconds in report.phases.items():
        table.add_row(name, f"{seconds:.2f}")
    table.add_row("[bold]whole process[/]", f"[bold]{report.total:.2f}[/]")
    screen.show(f"{report.model}: median of {len(report.runs)} fresh processes", table)


@app.command()
@engine_options
def quantization(
    model: Model = "dummy-386m",
    schemes: Annotated[
        str, typer.Option(help="Comma-separated; the first is what the others are compared with.")
    ] = "float,int8,rtn,rtn+head",
    batch_size: Annotated[int, typer.Option(min=1, help="Requests that decode together.")] = 1,
    output_len: Annotated[int, typer.Option(min=2, help="Tokens of each request in a round.")] = 32,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each scheme, in turn.")] = 5,
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Decode steps with fewer bits in the weights, all schemes in turn in one process.

    \b
    float      as loaded
    int8       8-bit weights and activations (W8A8)
    rtn        4-bit weights, groups of 128
    rtn+head   the output head too
    fp8, llm_int8 run as well; on a CPU they save memory, not time

    \b
    Examples:
      prep bench quantization
      prep bench quantization shop --batch-size 8 --json
    """
    from app.bench.quantization import measure
    from engine.config.quantization import ONLINE_SCHEMES

    names = tuple(name.strip() for name in schemes.split(",") if name.strip())
    unknown = [name for name in names if name.removesuffix("+head") not in (*ONLINE_SCHEMES, "float")]
    if unknown or not names or "float+head" in names or len(set(names)) < len(names):
        raise screen.Problem(
            f"--schemes {schemes}: each once, from float, {', '.join(ONLINE_SCHEMES)}, with +head for the head too",
            next_step="--schemes float,int8,rtn+head",
        )
    with status() as tell:
        report = measure(
            tell, model, engine, schemes=names, batch_size=batch_size, output_len=output_len, rounds=rounds
        )
    if not json:
        show_quantization(report)
    finish(report, as_json=json, next_command="prep zoo quantize shop", why="a checkpoint with fewer bits")


def show_quantization(report: QuantizationReport) -> None:
    table = screen.table("weights", "step p50", "p90", "faster", "MB", "bits/weight", "replayed")
    for row in report.schemes:
        times = (f"{row.decode_step.p50:.2f}", f"{row.decode_step.p90:.2f}")
        size = (f"{row.weight_megabytes:,.0f}", f"{row.bits_per_weight:.2f}")
        table.add_row(row.scheme, *times, f"{row.speedup:.2f} x", *size, "yes" if row.replays else "no")
    screen.show(
        f"{report.model}: decode step of {report.batch_size} requests, {report.rounds} rounds (ms)", table
    )


@app.command()
def grammar(
    model: Model = "shop",
    vocab_size: Annotated[
        int | None, typer.Option(min=1, help="Enlarge the vocabulary to this many tokens; costs only.")
    ] = None,
    outputs: Annotated[int, typer.Option(min=0, help="Outputs to judge per way; 0: costs only.")] = 40,
    temperature: Annotated[float, typer.Option(min=0, help="Of the outputs to judge.")] = 1.0,
    json: Json = False,
) -> None:
    """Structured outputs: compile time and time per mask of both backends, and what is valid without and with them.

    \b
    Examples:
      prep bench grammar
      prep bench grammar --temperature 1.5 --outputs 100
      prep bench grammar --vocab-size 128000 --json
    """
    from app.bench.grammar import measure

    with status() as tell:
        report = measure(tell, model, vocab_size=vocab_size, outputs=outputs, temperature=temperature)
    if not json:
        show_grammar(report)
    finish(report, as_json=json, next_command="prep generate --regex '[0-9]{3} yen' -p x", why="try one")


def show_grammar(report: GrammarReport) -> None:
    table = screen.table(
        "grammar", "backend", "compile ms", "us/mask new", "known", "masks", left=("backend",)
    )
    for cost in report.costs:
        times = (f"{cost.compile_ms:.1f}", f"{cost.new_mask_us:,.1f}", f"{cost.known_mask_us:,.1f}")
        table.add_row(cost.grammar, cost.backend, *times, str(cost.num_masks))
    screen.show(f"{report.model}, {report.vocab_size:,} tokens: what a grammar costs", table)
    if report.validity:
        table = screen.table(f"temperature {report.temperature:g}", "valid", "cut off")
        for row in report.validity:
            table.add_row(row.name, f"{row.valid:.0%}", f"{row.cut_off:.0%}")
        screen.show("what it buys: valid outputs, and questions answered with a tool call", table)


@app.command()
@engine_options
def parallel(
    model: Model = "shop",
    requests: Annotated[int, typer.Option(min=1, help="Requests that run at once.")] = 8,
    output_len: Annotated[int, typer.Option(min=2, help="Tokens generated for each.")] = 32,
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """One process against ranks: same tokens, collectives per step, bytes per token, bubble, time on real links.

    \b
    Examples:
      prep bench parallel shop --tensor-parallel-size 2
      prep bench parallel shop --pipeline-parallel-size 2 --requests 1
    """
    if engine["tensor_parallel_size"] * engine["pipeline_parallel_size"] == 1:
        raise screen.Problem(
            "nothing is split", next_step="prep bench parallel shop --tensor-parallel-size 2"
        )
    from app.bench.parallel import measure

    with status() as tell:
        report = measure(tell, model, engine, num_requests=requests, output_len=output_len)
    if not json:
        table = screen.table("what", "figure")
        table.add_row("same tokens", "yes" if report.same_tokens else "NO")
        table.add_row("steps", str(report.num_steps))
        table.add_row("collectives per step (answering rank)", f"{report.collectives_per_step:.1f}")
        table.add_row("bytes per token (answering rank)", f"{report.bytes_per_token:,.0f}")
        table.add_row("bubble", f"{report.bubble:.0%}")
        table.add_row(
            "time, one process / split", f"{report.seconds_alone:.2f} / {report.seconds_split:.2f} s"
        )
        for name, ms in report.decode_step_ms_by_link.items():
            table.add_row(f"a decode step's messages over {name}", f"{ms:.3f} ms")
        screen.show(f"{model}: {requests} requests", table)
    finish(report, as_json=json, next_command="prep sim run --help", why="the same on GPUs you do not have")
    if not report.same_tokens:
        raise typer.Exit(1)


@app.command()
@engine_options
def lora(
    model: Model = "shop",
    adapters: Annotated[int, typer.Option("--adapters", min=2, help="Most adapters in one batch.")] = 4,
    batch_size: Annotated[int, typer.Option(min=1, help="Requests that decode together.")] = 8,
    output_len: Annotated[int, typer.Option(min=2, help="Tokens of each request in a round.")] = 48,
    rank: Annotated[int, typer.Option(min=1, help="Of the adapters and of their slots.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each variant, in turn.")] = 7,
    json: Json = False,
    *,
    engine: dict[str, Any],
) -> None:
    """What adapters cost: decoding with none, one and several in a batch, in turn in one engine.

    \b
    Examples:
      prep bench lora
      prep bench lora dummy-386m --batch-size 1 --rank 8
    """
    from app.bench.lora import measure

    with status() as tell:
        report = measure(
            tell,
            model,
            engine,
            counts=[0, 1, adapters],
            batch_size=batch_size,
            output_len=output_len,
            rank=rank,
            rounds=rounds,
        )
    if not json:
        show_lora(report)
    finish(report, as_json=json, next_command="prep zoo eval shop-lora-support", why="what adapters are for")


def show_lora(report: LoRAReport) -> None:
    table = screen.table("adapters", "tok/s", "of none")
    for row in report.variants:
        table.add_row(str(row.num_adapters), f"{row.tokens_per_s:,.0f}", f"{row.relative:.0%}")
    screen.show(
        f"{report.model}: {report.batch_size} requests decode, adapters of rank {report.rank} "
        f"({report.adapter_bytes / 1e6:.1f} MB each, loaded in {report.load_ms:.0f} ms)",
        table,
    )
