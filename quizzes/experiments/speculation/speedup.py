from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.speculation._fleet_of_one import Target, serve

if TYPE_CHECKING:
    pass


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

    Returns:
        One batch decoded to its end, with and without drafts.
        speedup [x]: Output tokens per second with drafts over without. Under 1 drafts cost more than they bring.
        pays
        tokens_per_step [tokens]: Per request and step, with drafts.
        plain_step_ms [ms]
        speculative_step_ms [ms]: Drafting included.
        step_ratio [x]: Step time with drafts over step time without.
        plain_tokens_per_s, speculative_tokens_per_s [tokens/s]
        plain_ttft_ms, speculative_ttft_ms [ms]
        plain_worst_gap_ms, speculative_worst_gap_ms [ms]: 99th percentile of the time between two outputs of a
            request.
        plain_finish_spread, speculative_finish_spread [share]: (slowest - median) / median of the requests' durations;
            all have the same lengths.
        plain_slowest_ms, speculative_slowest_ms [ms]: The request that took longest, from arrival to its last token.
        positions [positions]: Positions that one verifying step computes in the target: batch x (k + 1).
    """
    target = Target(model, hardware, tp)
    load: dict[str, Any] = {"batch": batch, "prompt": prompt, "output": output}
    draft = Target(draft_model, hardware, draft_tp) if draft_model else None
    plain: Any = serve(target, **load)
    drafts: Any = serve(target, **load, num_drafts=k, acceptance=acceptance, draft=draft, seed=ctx.seed)
    runs = {"plain": plain, "speculative": drafts}
    steps = {name: float(run.itl.p50) for name, run in runs.items()}
    return Result(
        speedup=_rate(drafts, batch) / _rate(plain, batch),
        pays=_rate(drafts, batch) > _rate(plain, batch),
        tokens_per_step=_tokens_per_step(drafts, batch, output),
        step_ratio=steps["speculative"] / steps["plain"],
        **{f"{name}_step_ms": 1e3 * seconds for name, seconds in steps.items()},
        **{f"{name}_tokens_per_s": _rate(run, batch) for name, run in runs.items()},
        **{f"{name}_ttft_ms": 1e3 * run.ttft.mean for name, run in runs.items()},
        **{f"{name}_worst_gap_ms": 1e3 * run.itl.p99 for name, run in runs.items()},
        **{f"{name}_finish_spread": _spread(run) for name, run in runs.items()},
        **{f"{name}_slowest_ms": 1e3 * run.e2e.max for name, run in runs.items()},
        positions=batch * (k + 1),
    )


def _rate(report: Any, batch: int) -> float:
    """Tokens per second after the first token, times the batch: prefill does not count."""
    return batch / float(report.tpot.mean)


def _tokens_per_step(report: Any, batch: int, output: int) -> float:
    """Tokens per request and step; each gap between outputs is one step of a request."""
    return batch * (output - 1) / int(report.itl.count)


def _spread(report: Any) -> float:
    return float((report.e2e.max - report.e2e.p50) / report.e2e.p50)
