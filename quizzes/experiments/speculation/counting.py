"""Drafts by n-gram look-up, tokens per step, and the price of speculation on a simulated GPU."""

import json
import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Literal

from engine.config import CacheConfig, SchedulerConfig
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams
from engine.sim.cost import CostModel, Efficiency, Rates
from engine.sim.memory import Deployment
from engine.sim.report import RunReport
from engine.sim.run import make_engine, simulate
from engine.sim.speculation import Speculation
from engine.sim.workload import SimRequest
from quizzes.experiments import Context, Result, arg, deploy, experiment


@experiment("E37", megabytes=2500)
def lookup(
    tokens: list[int] = arg([5, 6, 7, 8, 9, 5, 6, 7], 0, 1_000_000, count=(1, 5000)),
    shortest: int = arg(2, 1, 20),
    longest: int = arg(5, 1, 20),
    k: int = arg(3, 1, 16),
) -> Result:
    """Find the drafts that the engine's n-gram drafter proposes for a list of tokens.

    Returns: Proposals for the longest suffix that occurred before, at its last occurrence.
        drafts [token ids]; num_drafts [drafts]
        looked_up [tokens]: Length of the ending that was found earlier; 0: none, and nothing is proposed.
    """
    import numpy as np

    from engine.spec.ngram import continuation

    text = np.array(tokens, np.int32)
    drafts = continuation(text, shortest, longest, k)
    size = next((n for n in range(longest, shortest - 1, -1) if continuation(text, n, n, 1)), 0)
    return Result(drafts=drafts, num_drafts=len(drafts), looked_up=size)


ENGINE = Path(__file__).parents[3] / "engine"
FILES = {"code": ENGINE / "core" / "scheduler.py", "prose": ENGINE / "zoo" / "README.md"}


@experiment("E37", seconds=20, megabytes=2500)
def prompt_lookup(
    text: Literal["code", "prose", "json"] = "code",
    task: Literal["write", "edit"] = "write",
    k: int = arg(4, 1, 16),
    shortest: int = arg(2, 1, 8),
    longest: int = arg(5, 1, 8),
    tokens: int = arg(1500, 200, 3000),
) -> Result:
    """Measure how much of real code, prose and JSON an n-gram drafter predicts.

    A text is replayed as a greedy model's answer. write: the drafter knows only the answer so far. edit: the prompt
    holds the text, and the answer is the same text with one word renamed, as in a refactoring. code: the engine's own
    scheduler. prose: a page of its documentation. json: rows of an invented catalogue.

    Returns: A text replaces the model's output; the drafter sees everything before each position.
        tokens_per_step [tokens]
        acceptance_rate [share]: Accepted drafts over proposed ones.
        steps, steps_with_drafts [steps]; tokens [tokens]
    """
    import numpy as np

    from engine.spec.ngram import continuation
    from engine.zoo.registry import MODELS
    from engine.zoo.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(MODELS / "shop")
    written = read(text)
    answer = tokenizer.encode(written).ids[:tokens]
    known = []
    if task == "edit":
        (word, _), *_ = Counter(re.findall(r"[A-Za-z_]{6,}", written)).most_common(1)
        known, answer = answer, tokenizer.encode(written.replace(word, "renamed")).ids[:tokens]
    sequence = np.array([*known, *answer], np.int32)
    place, steps, drafted, accepted, with_drafts = len(known) + 1, 0, 0, 0, 0
    while place < len(sequence):
        drafts = continuation(sequence[:place], shortest, longest, k) if place >= 2 else []
        truth = sequence[place : place + len(drafts)].tolist()
        right = next((i for i, (d, t) in enumerate(zip(drafts, truth, strict=False)) if d != t), len(truth))
        steps, drafted, accepted = steps + 1, drafted + len(drafts), accepted + right
        with_drafts += bool(drafts)
        place += right + 1
    return Result(
        tokens_per_step=(len(answer) - 1) / steps,
        acceptance_rate=accepted / drafted if drafted else 0.0,
        steps=steps,
        steps_with_drafts=with_drafts,
        tokens=len(answer),
    )


def read(text: str) -> str:
    """Return the text by name."""
    if text != "json":
        return FILES[text].read_text(encoding="utf-8")

    from engine.zoo.catalogue import draw_catalogue

    items = [item for seed in range(12) for item in draw_catalogue(Random(seed), "en", 8).items]
    fields = ("title", "author", "price", "volumes")
    return json.dumps([{field: getattr(item, field) for field in fields} for item in items], indent=1)


@experiment("E36")
def expected_tokens(
    ctx: Context,
    acceptance: float = arg(0.7, 0, 1),
    k: int = arg(4, 1, 16),
    output: int = arg(1500, 20, 4000),
    rows: int = arg(16, 1, 32),
) -> Result:
    """Count tokens per verified step when each of k drafts is right with probability a.

    Returns: A draft counts only if all drafts before it were right. Drafts are seeded: the same everywhere.
        tokens_per_step [tokens]: Generated per row and step that verified drafts.
        accepted_per_step [drafts]
        acceptance_rate [share]: Accepted over drafted, as vLLM logs it: less than `acceptance`, since a wrong
            draft ends the row.
        computed_per_token [positions]: Positions that went through the target for each token kept.
        steps_without, steps_with [steps]
    """
    speculation = Speculation(k, acceptance, seed=ctx.seed)
    blocks = rows * (-(-(output + k + 2) // 16) + 2) + 2
    scheduler = Scheduler(SchedulerConfig(rows * (k + 1), rows, output + 64), CacheConfig(blocks, 16))
    for index in range(rows):
        scheduler.add(Request(f"r{index}", [index], SamplingParams(max_tokens=output, ignore_eos=True)))
    kept: list[int] = []
    """Tokens that each verified row keeps."""
    computed = steps = 0
    while scheduler.has_unfinished():
        out = scheduler.schedule()
        result = ModelRunnerOutput({row.request_id: [7] for row in out.scheduled})
        speculation.answer(out, result)
        steps += 1
        for row in out.scheduled:
            if len(row.spec_token_ids) == k:  # near the end of a request fewer are wanted
                kept.append(len(result.sampled_token_ids[row.request_id]))
                computed += row.num_tokens
        scheduler.update(out, result)
    accepted = sum(kept) - len(kept)
    return Result(
        tokens_per_step=sum(kept) / len(kept),
        accepted_per_step=accepted / len(kept),
        acceptance_rate=accepted / (k * len(kept)),
        computed_per_token=computed / sum(kept),
        steps_without=output,
        steps_with=steps,
    )


@experiment("E36", "E38", seconds=20)
def speedup(
    ctx: Context,
    batch: int = arg(1, 1, 512),
    k: int = arg(4, 1, 12),
    acceptance: float = arg(0.7, 0, 1),
    model: str = "qwen2.5-72b",
    draft_model: str = "qwen2.5-0.5b",
    hardware: str = "h100",
    tp: int = arg(4, 1, 8),
    draft_tp: int = arg(1, 1, 8),
    prompt: int = arg(512, 1, 8000),
    output: int = arg(200, 8, 1000),
) -> Result:
    """Price speculative decoding on a GPU: the real scheduler on a roofline, in virtual time.

    Decodes `batch` requests with k drafts per step. draft_model "": drafts cost nothing, as with n-grams. The drafter
    runs k times per step, on draft_tp devices; its prefill is not priced. A verifying step costs as much as one of
    batch x (k + 1) positions.

    Returns: One batch decoded to its end, with and without drafts.
        speedup [x]: Output tokens per second with drafts over without. Under 1 drafts cost more than they bring.
        pays
        tokens_per_step [tokens]: Per request and step, with drafts.
        plain_step_ms [ms]
        speculative_step_ms [ms]: Drafting included.
        step_ratio [x]: Step time with drafts over step time without.
        plain_tokens_per_s, speculative_tokens_per_s [tokens/s]; plain_ttft_ms, speculative_ttft_ms [ms]
        plain_worst_gap_ms, speculative_worst_gap_ms [ms]: 99th percentile of the time between two outputs.
        plain_finish_spread, speculative_finish_spread [share]: (slowest - median) / median duration of a request.
        plain_slowest_ms, speculative_slowest_ms [ms]: The request that took longest, from arrival to its last token.
        positions [positions]: Positions that one verifying step computes in the target: batch x (k + 1).
    """
    plain: Any = _serve(deploy(model, hardware, tp=tp, **_limits(batch, prompt + output + 1)), prompt, output)
    longest = _limits(batch, prompt + output + k + 1)
    target = deploy(model, hardware, tp=tp, **longest)
    drafter = deploy(draft_model, hardware, holds=0, tp=draft_tp, **longest) if draft_model else None
    price = CostModel(drafter, _rates(drafter)) if drafter else None
    drafts: Any = _serve(target, prompt, output, Speculation(k, acceptance, price, ctx.seed))
    runs = {"plain": plain, "speculative": drafts}
    rates = {name: batch / float(run.tpot.mean) for name, run in runs.items()}  # prefill does not count
    steps = {name: float(run.itl.p50) for name, run in runs.items()}
    return Result(
        speedup=rates["speculative"] / rates["plain"],
        pays=rates["speculative"] > rates["plain"],
        tokens_per_step=batch * (output - 1) / int(drafts.itl.count),  # a gap between outputs is a step
        step_ratio=steps["speculative"] / steps["plain"],
        **{f"{name}_step_ms": 1e3 * seconds for name, seconds in steps.items()},
        **{f"{name}_tokens_per_s": rate for name, rate in rates.items()},
        **{f"{name}_ttft_ms": 1e3 * run.ttft.mean for name, run in runs.items()},
        **{f"{name}_worst_gap_ms": 1e3 * run.itl.p99 for name, run in runs.items()},
        **{f"{name}_finish_spread": (run.e2e.max - run.e2e.p50) / run.e2e.p50 for name, run in runs.items()},
        **{f"{name}_slowest_ms": 1e3 * run.e2e.max for name, run in runs.items()},
        positions=batch * (k + 1),
    )


def _limits(batch: int, longest: int) -> dict[str, int]:
    """Return the limits of a deployment whose budget never splits a step."""
    return {"max_num_seqs": batch, "max_num_batched_tokens": 65_536, "max_model_len": longest}


def _rates(replica: Deployment) -> Rates:
    """Steps of k + 1 tokens per row are replayed from graphs, as vLLM captures them: no overhead per layer."""
    compute = replica.precision.compute_dtype(replica.hardware)
    return Rates.of(replica.hardware, compute, Efficiency(eager_overhead=0.0))


def _serve(
    replica: Deployment, prompt: int, output: int, speculation: Speculation | None = None
) -> RunReport:
    """Decode a full batch, all requests at once, to the end."""
    batch = replica.max_num_seqs
    engine = make_engine(
        replica,
        rates=_rates(replica),
        num_blocks=batch * (-(-replica.max_model_len // replica.block_size) + 2) + 2,
        enable_prefix_caching=False,
        speculation=speculation,
        fast_forward=speculation is None,
    )
    return simulate(engine, [SimRequest(index, 0.0, prompt, output) for index in range(batch)])
