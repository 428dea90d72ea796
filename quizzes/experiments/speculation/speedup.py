"""E36, E38: what drafts buy on a GPU: the real scheduler, priced by a roofline, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment

if TYPE_CHECKING:
    from engine.sim.report import RunReport


@dataclass(frozen=True)
class Speedup:
    """One batch decoded to its end, with and without drafts."""

    speedup: Annotated[float, "x"]
    """Output tokens per second with drafts over without. Under 1 drafts cost more than they bring."""
    pays: bool
    tokens_per_step: Annotated[float, "tokens"]
    """Per request and step, with drafts."""
    plain_step_ms: Annotated[float, "ms"]
    speculative_step_ms: Annotated[float, "ms"]
    """Drafting included."""
    step_ratio: Annotated[float, "x"]
    """How much longer a step takes with drafts."""
    plain_tokens_per_s: Annotated[float, "tokens/s"]
    speculative_tokens_per_s: Annotated[float, "tokens/s"]
    plain_ttft_ms: Annotated[float, "ms"]
    speculative_ttft_ms: Annotated[float, "ms"]
    plain_worst_gap_ms: Annotated[float, "ms"]
    """99th percentile of the time between two outputs of a request."""
    speculative_worst_gap_ms: Annotated[float, "ms"]
    plain_finish_spread: Annotated[float, "share"]
    """(slowest - median) / median of the requests' durations; all have the same lengths."""
    speculative_finish_spread: Annotated[float, "share"]
    plain_slowest_ms: Annotated[float, "ms"]
    """The request that took longest, from arrival to its last token."""
    speculative_slowest_ms: Annotated[float, "ms"]
    positions: Annotated[int, "positions"]
    """That one verifying step puts through the target: batch x (k + 1)."""


@experiment("E36", "E38", seconds=20)
def speedup(
    ctx: Context,
    *,
    batch: Annotated[int, Field(ge=1, le=512)] = 1,
    k: Annotated[int, Field(ge=1, le=12)] = 4,
    acceptance: Annotated[float, Field(ge=0, le=1)] = 0.7,
    model: str = "qwen2.5-72b",
    draft_model: str = "qwen2.5-0.5b",
    hardware: str = "h100",
    tp: Annotated[int, Field(ge=1, le=8)] = 4,
    draft_tp: Annotated[int, Field(ge=1, le=8)] = 1,
    prompt: Annotated[int, Field(ge=1, le=8000)] = 512,
    output: Annotated[int, Field(ge=8, le=1000)] = 200,
) -> Speedup:
    """Decode `batch` requests with k drafts per step. draft_model "": drafts cost nothing, as with n-grams.

    The drafter runs k times per step, on draft_tp devices; its own reading of the prompt is not priced. A verifying
    step is priced as one of batch x (k + 1) positions.
    """
    from quizzes.experiments.speculation._fleet_of_one import Target, serve

    target = Target(model, hardware, tp)
    load = {"batch": batch, "prompt": prompt, "output": output}
    draft = Target(draft_model, hardware, draft_tp) if draft_model else None
    plain = serve(target, **load)
    drafts = serve(target, **load, num_drafts=k, acceptance=acceptance, draft=draft, seed=ctx.seed)
    plain_step, step = (_decode_step(report) for report in (plain, drafts))
    return Speedup(
        speedup=_rate(drafts, batch) / _rate(plain, batch),
        pays=_rate(drafts, batch) > _rate(plain, batch),
        tokens_per_step=_tokens_per_step(drafts, batch, output),
        plain_step_ms=1e3 * plain_step,
        speculative_step_ms=1e3 * step,
        step_ratio=step / plain_step,
        plain_tokens_per_s=_rate(plain, batch),
        speculative_tokens_per_s=_rate(drafts, batch),
        plain_ttft_ms=1e3 * plain.ttft.mean,
        speculative_ttft_ms=1e3 * drafts.ttft.mean,
        plain_worst_gap_ms=1e3 * plain.itl.p99,
        speculative_worst_gap_ms=1e3 * drafts.itl.p99,
        plain_finish_spread=_spread(plain),
        speculative_finish_spread=_spread(drafts),
        plain_slowest_ms=1e3 * plain.e2e.max,
        speculative_slowest_ms=1e3 * drafts.e2e.max,
        positions=batch * (k + 1),
    )


def _rate(report: RunReport, batch: int) -> float:
    """Tokens per second of one request behind its first token, times the batch: prefill does not count."""
    return batch / report.tpot.mean


def _decode_step(report: RunReport) -> float:
    return report.itl.p50


def _tokens_per_step(report: RunReport, batch: int, output: int) -> float:
    """Gaps between outputs are steps in which a request took part."""
    return batch * (output - 1) / report.itl.count


def _spread(report: RunReport) -> float:
    return (report.e2e.max - report.e2e.p50) / report.e2e.p50
