"""`prep bench speculation`, `quantization`, `lora`, `grammar`, `swap`, `sleep`: what a feature costs and gains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from app.cli import terminal
from app.cli.bench.common import run
from app.cli.engine_options import engine_options
from app.cli.options import JsonOption, ModelArgument, option, parse_numbers
from engine.config import SpeculativeConfig
from prep_common.text import counted, duration, gib

if TYPE_CHECKING:
    from app.bench.grammar import GrammarReport
    from app.bench.lora import LoRAReport
    from app.bench.quantization import QuantizationReport
    from app.bench.sleep import SleepReport
    from app.bench.speculation import SpeculationReport
    from app.bench.tiers import TierReport


@engine_options
def speculation(
    model: ModelArgument = "shop",
    method: Annotated[
        str, option("Drafters to compare, comma-separated: ngram, suffix, draft_model, eagle, medusa.")
    ] = "ngram,suffix,draft_model,eagle,medusa",
    tokens: Annotated[int, option("Drafts per request and step.", min=1)] = 4,
    batch_sizes: Annotated[str, option("Requests at once, comma-separated numbers.")] = "1,4,16,64,128",
    workload: Annotated[
        str, option("Comma-separated: repetitive, agentic, json, free.")
    ] = "repetitive,agentic,json,free",
    requests: Annotated[int, option("Requests of each workload.", min=1)] = 64,
    json: JsonOption = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure speed with and without drafts, acceptance, and the batch size from which drafts slow it down.

    \b
    An engine without drafts and one for each method run the same requests in
    turns, in one process. Steps that compute prompts do not count. With
    --speculative-config, its drafter replaces those of --method.

    \b
    Examples:
      prep bench speculation --method ngram --batch-sizes 1
      prep bench speculation --workload json --tokens 6
      prep bench speculation --speculative-config '{"method": "ngram", "num_speculative_tokens": 8}'
    """
    from app.bench.speculation import WORKLOADS, configs, measure

    sizes = parse_numbers("--batch-sizes", batch_sizes)
    workloads = workload.split(",")
    if unknown := [name for name in workloads if name not in WORKLOADS]:
        raise terminal.Problem(f"no workload {unknown[0]!r}", f"--workload {','.join(WORKLOADS)}")
    own = SpeculativeConfig.from_args(engine.pop("speculative_config"))
    drafters = configs(method.split(","), tokens) if own is None else {own.method: own}
    work: dict[str, Any] = {"workloads": workloads, "batch_sizes": sizes, "requests": requests}
    then = ("prep bench latency", "time to the first token")
    run(
        lambda tell: measure(tell, model, engine, drafters, **work),
        show_speculation,
        json=json,
        then=then,
        takes="10 min",
    )


def show_speculation(report: SpeculationReport) -> None:
    table = terminal.table(
        "workload",
        "drafts",
        "batch",
        "tok/s",
        "gain",
        "per step",
        "% kept at 1, 2",
        "same",
        left=("drafts",),
    )
    for result in report.results:
        table.add_row(
            result.workload,
            result.method.removesuffix("_model"),
            str(result.batch_size),
            f"{result.tokens_per_s:,.0f}",
            f"[bold]{result.speedup:.2f}x[/]",
            f"{result.tokens_per_step:.2f}",
            " ".join(f"{share:.0%}".rstrip("%") for share in result.acceptance_per_pos),
            "yes" if result.is_identical else "[red]no[/]",
        )
    terminal.show(
        f"{report.model}: up to {counted(report.num_speculative_tokens, 'draft')} per request and step", table
    )
    terminal.out().print(
        "[dim]gain: against no drafts. per step: tokens a request gets in a step. kept: drafts that the model "
        "confirms, by their place. same: tokens equal those without drafts[/]"
    )
    for workload, method in dict.fromkeys((result.workload, result.method) for result in report.results):
        size = report.break_even(workload, method)
        where = "at none of these batch sizes" if size is None else f"from {size} at once on"
        terminal.out().print(f"  {method}, {workload}: a loss {where}")


@engine_options
def quantization(
    model: ModelArgument = "dummy-386m",
    schemes: Annotated[
        str, option("Comma-separated; the others are compared with the first.")
    ] = "float,int8,rtn,rtn+head",
    batch_size: Annotated[int, option("Requests that decode together.", min=1)] = 1,
    output_len: Annotated[int, option("Tokens of each request in a round.", min=2)] = 32,
    rounds: Annotated[int, option("Rounds of each scheme, in turn.", min=1)] = 5,
    json: JsonOption = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure decode steps with fewer bits in the weights, all schemes in turn in one process.

    \b
    float      as loaded
    int8       8-bit weights and activations (W8A8)
    rtn        4-bit weights, groups of 128
    rtn+head   the output head too
    fp8 and llm_int8 also run; on a CPU they save memory, not time. mxfp4 and
    nvfp4 are emulated and save neither; prep zoo formats shows their errors

    \b
    Examples:
      prep bench quantization
      prep bench quantization shop --batch-size 8 --json
    """
    from app.bench.quantization import measure
    from engine.config.model import ONLINE_SCHEMES

    names = tuple(name.strip() for name in schemes.split(",") if name.strip())
    unknown = [name for name in names if name.removesuffix("+head") not in (*ONLINE_SCHEMES, "float")]
    if unknown or not names or "float+head" in names or len(set(names)) < len(names):
        raise terminal.Problem(
            f"--schemes {schemes}: each once, from float, {', '.join(ONLINE_SCHEMES)}, with +head for the head too",
            "--schemes float,int8,rtn+head",
        )
    work: dict[str, Any] = {
        "schemes": names,
        "batch_size": batch_size,
        "output_len": output_len,
        "rounds": rounds,
    }
    then = ("prep zoo quantize shop", "a checkpoint with fewer bits")
    run(
        lambda tell: measure(tell, model, engine, **work),
        show_quantization,
        json=json,
        then=then,
        takes="1 min",
    )


def show_quantization(report: QuantizationReport) -> None:
    table = terminal.table("weights", "step p50", "p90", "faster", "MB", "bits/weight", "replayed")
    for row in report.schemes:
        times = (f"{row.decode_step.p50:.2f}", f"{row.decode_step.p90:.2f}")
        size = (f"{row.weight_megabytes:,.0f}", f"{row.bits_per_weight:.2f}")
        table.add_row(row.scheme, *times, f"{row.speedup:.2f} x", *size, "yes" if row.replays else "no")
    batch, rounds = counted(report.batch_size, "request"), counted(report.rounds, "round")
    terminal.show(f"{report.model}: decode step of {batch}, {rounds} (ms)", table)


@engine_options
def lora(
    model: ModelArgument = "shop",
    adapters: Annotated[int, option("Maximum number of adapters in one batch.", min=2)] = 4,
    batch_size: Annotated[int, option("Requests that decode together.", min=1)] = 8,
    output_len: Annotated[int, option("Tokens of each request in a round.", min=2)] = 48,
    rank: Annotated[int, option("Rank of the adapters and of their slots.", min=1)] = 16,
    rounds: Annotated[int, option("Rounds of each variant, in turn.", min=1)] = 7,
    json: JsonOption = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure decoding with no, one and several adapters in a batch, in turn in one engine.

    \b
    Examples:
      prep bench lora
      prep bench lora dummy-386m --batch-size 1 --rank 8
      prep bench lora --lora-dtype bfloat16   half the bytes for each adapter
    """
    from app.bench.lora import measure

    work: dict[str, Any] = {
        "batch_size": batch_size,
        "output_len": output_len,
        "rank": rank,
        "rounds": rounds,
    }
    then = ("prep zoo eval shop-lora-support", "measure what an adapter adds")
    run(
        lambda tell: measure(tell, model, engine, counts=[0, 1, adapters], **work),
        show_lora,
        json=json,
        then=then,
    )


def show_lora(report: LoRAReport) -> None:
    rows = [(row.num_adapters, f"{row.tokens_per_s:,.0f}", f"{row.relative:.0%}") for row in report.variants]
    terminal.show(
        f"{report.model}: batch of {counted(report.batch_size, 'request')}, adapters of rank {report.rank} "
        f"({report.adapter_bytes / 1e6:.1f} MB each, loaded in {report.load_ms:.0f} ms)",
        terminal.table("adapters", "tok/s", "of none", rows=rows),
    )


def grammar(
    model: ModelArgument = "shop",
    vocab_size: Annotated[
        int | None, option("Enlarge the vocabulary to this many tokens; costs only.", min=1)
    ] = None,
    outputs: Annotated[int, option("Outputs to check per variant; 0: costs only.", min=0)] = 40,
    temperature: Annotated[float, option("Temperature of the checked outputs.", min=0)] = 1.0,
    json: JsonOption = False,
) -> None:
    """Measure structured outputs: compile time, time per mask, and the share of valid outputs.

    \b
    Examples:
      prep bench grammar
      prep bench grammar --temperature 1.5 --outputs 100
      prep bench grammar --vocab-size 128000 --json
    """
    from app.bench.grammar import measure

    work: dict[str, Any] = {"vocab_size": vocab_size, "outputs": outputs, "temperature": temperature}
    then = ("prep generate --help", "try one")
    run(lambda tell: measure(tell, model, **work), show_grammar, json=json, then=then)


def show_grammar(report: GrammarReport) -> None:
    headings = ("grammar", "backend", "compile ms", "us/mask new", "known", "masks")
    table = terminal.table(*headings, left=("backend",))
    for cost in report.costs:
        times = (f"{cost.compile_ms:.1f}", f"{cost.new_mask_us:,.1f}", f"{cost.known_mask_us:,.1f}")
        table.add_row(cost.grammar, cost.backend, *times, str(cost.num_masks))
    terminal.show(f"{report.model}, {report.vocab_size:,} tokens: cost of a grammar", table)
    if report.validity:
        rows = [(row.name, f"{row.valid:.0%}", f"{row.cut_off:.0%}") for row in report.validity]
        table = terminal.table(f"temperature {report.temperature:g}", "valid", "cut off", rows=rows)
        terminal.show("valid outputs, and questions answered with a tool call", table)


@engine_options
def swap(
    model: ModelArgument = "shop",
    lengths: Annotated[str, option("Prompt lengths in tokens, comma-separated.")] = "64,128,256,512,1000",
    rounds: Annotated[int, option("Repetitions of each length.", min=1)] = 5,
    json: JsonOption = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure swap against recompute, and a cached prefix on the device, the host and a disk.

    \b
    Examples:
      prep bench swap shop
      prep bench swap shop --lengths 128,512,1000 --rounds 9 --json
    """
    from app.bench.tiers import measure

    try:
        sizes = [int(length) for length in lengths.split(",")]
    except ValueError:
        raise terminal.Problem(
            f"--lengths: {lengths!r} is not a list of numbers", "--lengths 128,512"
        ) from None
    run(
        lambda tell: measure(tell, model, engine, lengths=sizes, rounds=rounds),
        show_tiers,
        json=json,
        then=("prep generate shop --chat -p 'What do you recommend?' --preemption-mode swap", "use it"),
    )


def show_tiers(report: TierReport) -> None:
    table = terminal.table("prompt", "computed", "device", "host", "disk", "swap out", "swap in", "recompute")
    for row in report.rows:
        times = (*row.first_token.values(), row.copy_out, row.copy_in, row.recompute)
        table.add_row(str(row.prompt_len), *(f"{ms:.2f}" for ms in times))
    terminal.show(f"{report.model}: first token by where the prompt's KV was, and one preemption (ms)", table)
    at = report.break_even
    verdict = "never on this machine" if at is None else f"from {at} tokens on (measured)"
    terminal.out().print(
        f"Per 1,000 tokens: swap {report.swap_ms_per_1k:.2f} ms, recompute {report.recompute_ms_per_1k:.2f} ms. "
        f"Swap is cheaper {verdict}."
    )
    if report.misses:
        terminal.err().print(
            f"[yellow]{counted(report.misses, 'run')} found the prefix in another tier and did not count[/]"
        )


@engine_options
def sleep(
    models: Annotated[str, option("Models that share the machine, comma-separated.")] = "shop,shop-draft",
    rounds: Annotated[int, option("Times that each model sleeps and wakes up.", min=1)] = 5,
    json: JsonOption = False,
    *,
    engine: dict[str, Any],
) -> None:
    """Measure sleep, waking up, and a switch from one model to another: seconds and memory freed.

    \b
    This engine ends its process when it sleeps and loads the model again when it
    wakes up. vLLM's level 1 keeps the weights in host memory: prep capacity
    PLAN --why wake computes that copy.

    \b
    Examples:
      prep bench sleep
      prep bench sleep --models shop --rounds 3 --json
    """
    from app.bench.sleep import measure

    names = [name.strip() for name in models.split(",") if name.strip()]
    if not names:
        raise terminal.Problem(f"--models: {models!r} names no model", "--models shop,shop-draft")
    run(
        lambda tell: measure(tell, names, engine, rounds=rounds),
        show_sleep,
        json=json,
        then=("prep capacity chat_startup --why wake", "the same for a GPU, by formula"),
    )


def show_sleep(report: SleepReport) -> None:
    table = terminal.table("model", "first start", "sleep", "wake up", "first token", "memory freed")
    for model in report.models:
        times = (model.start, model.sleep, model.wake, model.first_token)
        table.add_row(model.model, *(duration(seconds) for seconds in times), gib(model.freed_bytes, 2))
    terminal.show(f"medians of {counted(report.rounds, 'round')}", table)
    terminal.say(
        f"switch, from the order to sleep to the next model's first token: {duration(report.switch)}"
    )
