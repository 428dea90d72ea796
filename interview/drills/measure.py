"""Compute the figures of a run, and whether it met the objective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, median
from typing import Any

from engine.server.load_client import LEFT, Sent
from interview.drills.drill import Load, Objective
from interview.drills.figures import FIGURES, Figures
from interview.drills.platform_figures import platform_figures
from interview.drills.quality import marks, quality_figures
from interview.drills.running import Record
from prep_common.percentile import percentile


def figures(record: Record, load: Load) -> Figures:
    """Return every figure of FIGURES."""
    steps = [step for server in record.steps for step in server]
    log = [entry for server in record.log for entry in server]
    measured = _of_metrics(record, load, steps, log)
    measured |= _of_clients(record, log)
    parts = [_of_steps(server) for server in record.steps if server]
    measured |= {name: fmean(part[name] for part in parts) for name in (parts[0] if parts else {})}
    measured |= _of_log(record, log)
    measured |= _of_replicas(record)
    measured |= platform_figures(record)
    measured |= quality_figures(record.due, record.sent)
    return {name: round(float(measured.get(name, 0.0)), 4) for name in FIGURES}


def _p(values: Iterable[float], share: float) -> float:
    kept = sorted(values)
    return percentile(kept, share) if kept else 0.0


def _ms(seconds: float | None) -> float:
    return 0.0 if seconds is None else 1000 * seconds


def _of_metrics(
    record: Record, load: Load, steps: Sequence[dict[str, Any]], log: Sequence[dict[str, Any]]
) -> Figures:
    total, more = record.total, record.more
    busy = [sample for sample in record.samples if sample.running or sample.waiting] or record.samples
    ended = sum(more.get(f"ended_{reason}", 0.0) for reason in ("stop", "length"))
    computed = sum(step.get("num_prefill_tokens", 0) for step in steps)
    new = more.get("prompt_tokens_total", 0.0) - more.get("prompt_tokens_cached_total", 0.0)
    return {
        "server_ttft_p50": _ms(total.ttft_p50),
        "server_ttft_p99": _ms(total.ttft_p99),
        "server_itl_p50": _ms(total.itl_p50),
        "server_itl_p99": _ms(total.itl_p99),
        "waiting_mean": fmean(reading.waiting for reading in busy),
        "running_mean": fmean(reading.running for reading in busy),
        "kv_mean": fmean(reading.kv_cache_usage for reading in busy),
        "preemptions": more.get("num_preemptions_total", 0.0),
        "deferred_mean": fmean(step.get("num_kv_waits", 0) for step in steps) if steps else 0.0,
        "hit_rate": total.prefix_hit_rate or 0.0,
        "prefix_queries": more.get("prefix_cache_queries_total", 0.0),
        "recomputed_tokens": max(0.0, computed - new),
        "ends_length_share": more.get("ended_length", 0.0) / ended if ended else 0.0,
        "ends_abort": more.get("ended_abort", 0.0),
        "rejections": more.get("admission_rejections_total", 0.0),
        "answer_tokens": fmean(entry["output"] for entry in log) if log else 0.0,
        "acceptance": total.draft_acceptance or 0.0,
        "lora_loads": sum(step.get("num_lora_loads", 0) for step in steps),
    }


def _of_clients(record: Record, log: Sequence[dict[str, Any]]) -> Figures:
    done = [sent for sent in record.sent if sent.last and not sent.error]
    gaps = [gap for sent in done for gap in sent.gaps]
    heard = [entry["TTFTMs"] for entry in log if "TTFTMs" in entry]
    ttft = 1000 * _p((sent.ttft for sent in done), 50)
    errors = [sent.error for sent in record.sent if sent.error and sent.error != LEFT]
    first = sum(sent.attempt == 1 for sent in record.sent)
    return {
        "client_ttft_p50": ttft,
        "client_ttft_p99": 1000 * _p((sent.ttft for sent in done), 99),
        "client_gap_p50": 1000 * _p(gaps, 50),
        "client_gap_p99": 1000 * _p(gaps, 99),
        "client_extra_ms": max(0.0, ttft - median(heard)) if heard and done else 0.0,
        "unanswered": sum(not sent.last and not sent.error for sent in record.sent),
        "failed": len(errors),
        "refused": sum(error == "HTTP 400" for error in errors),
        "timeouts": sum("408" in error for error in errors),
        "attempts": len(record.sent) / first if first else 0.0,
    }


def _of_steps(steps: Sequence[dict[str, Any]]) -> Figures:
    """Return the figures of one server's steps; a duration counts only between steps of a busy engine."""
    timed = [
        (1000 * (step["when"] - before["when"]), step)
        for before, step in zip(steps, steps[1:], strict=False)
        if before.get("num_running") and step.get("num_scheduled_tokens")
    ]
    times = [ms for ms, _ in timed]
    decodes = [(ms, step) for ms, step in timed if not step.get("num_prefill_tokens")]
    prompts = [step["num_prefill_tokens"] for step in steps if step.get("num_prefill_tokens")]
    tokens = [step["num_scheduled_tokens"] for step in steps if step.get("num_scheduled_tokens")]
    idle = [step for step in steps if not step.get("num_running")]
    middle = median(ms for ms, _ in decodes) if decodes else 0.0
    return {
        "step_ms_p50": _p(times, 50),
        "step_ms_long": sorted(times)[-4] if len(times) > 3 else max(times, default=0.0),
        "step_ms_early": max(times[:10], default=0.0),
        "step_ms_per_row": median(ms / step["num_decode_tokens"] for ms, step in decodes) if decodes else 0.0,
        "step_jitter": _p((ms for ms, _ in decodes), 95) / middle if middle else 0.0,
        "tokens_per_step": fmean(tokens) if tokens else 0.0,
        "prefill_max": max(prompts, default=0),
        "prefill_median": median(prompts) if prompts else 0.0,
        "empty_steps": sum(step["empty"] for step in steps if step.get("num_waiting")),
        "kv_idle": idle[-1].get("kv_cache_usage", 0.0) if idle else 0.0,
    }


def _of_log(record: Record, log: Sequence[dict[str, Any]]) -> Figures:
    if not log:
        return {}
    waits = [entry["QueueWaitMs"] for entry in log if "QueueWaitMs" in entry]
    return {
        "queue_ms_p50": _p(waits, 50),
        "queue_ms_p99": _p(waits, 99),
        "prompt_tokens_p50": median(entry["prompt"] for entry in log),
        "clock_skew_ms": skew_ms(record),
    }


def skew_ms(record: Record) -> float:
    """Return the difference between the request log's times of arrival and the clients' times of sending."""
    done = [sent.due for sent in record.sent if sent.last and not sent.error]
    arrived = [
        entry["arrival"]
        for server in record.log
        for entry in server
        if entry["finish_reason"] in ("stop", "length")
    ]
    return 1000 * abs(median(arrived) - record.began - median(done)) if arrived and done else 0.0


def _of_replicas(record: Record) -> Figures:
    counts = [len(server) for server in record.log]
    seen: dict[int, list[int]] = defaultdict(list)
    for number, server in enumerate(record.log):
        for entry in server:
            seen[entry["prefix"]].append(number)
    spread = [len(set(servers)) for servers in seen.values() if len(servers) > 1]
    return {
        "replica_imbalance": max(counts) / fmean(counts) if sum(counts) else 0.0,
        "replica_spread": fmean(spread) if spread and len(counts) > 1 else 0.0,
    }


def good_share(record: Record, load: Load, objective: Objective) -> float:
    """Return the share of requests within the objective. A request without an answer is not."""
    last: dict[tuple[str, float], Sent] = {}
    for sent in record.sent:
        if load.groups[sent.name].counts and not (objective.sheds and sent.error == "HTTP 429"):
            last[sent.name, sent.due] = sent
    if objective.clock_ms is not None and skew_ms(record) > objective.clock_ms:
        return 0.0
    right = marks(record.due, record.sent) if objective.right else {}
    good = sum(_is_good(answer, objective) and right.get(key, True) for key, answer in last.items())
    return good / len(last) if last else 0.0


def _is_good(sent: Sent, objective: Objective) -> bool:
    if sent.error or not sent.last:
        return False
    limits = (
        (objective.ttft_ms, sent.ttft),
        (objective.tpot_ms, sent.tpot),
        (objective.e2e_ms, sent.e2e),
        (objective.gap_ms, max(sent.gaps, default=0.0)),
    )
    return (
        all(limit is None or 1000 * value <= limit for limit, value in limits)
        and (objective.least_ttft_ms is None or 1000 * sent.ttft >= objective.least_ttft_ms)
        and (objective.least_tokens is None or sent.num_tokens >= objective.least_tokens)
    )
