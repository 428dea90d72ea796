"""Rules about KV memory and the prefix cache."""

from __future__ import annotations

from engine.server.diagnosis.inputs import Case
from engine.server.diagnosis.options import BASELINE, GATEWAY, LOG
from engine.server.diagnosis.replies import (
    Reply,
    Rules,
    either,
    first,
    less,
    more,
    percent,
    ratio,
    times,
    yes,
)  # fmt: skip

PREEMPTED = 0.1
"""Preemptions per ended request; each repeats its prefill."""
FULL = 0.9
SANE_FIT = 8.0
"""Requests that a pool should hold; with fewer, batching gains little."""
SHRUNK = 1.2
"""Ratio of the baseline's pool to this one. Start-up profiling varies by less than 10 %."""
FEW_HITS = 0.05
"""Hit rate of prompts that share nothing on purpose."""
HALVED = 0.6
"""Ratio to the baseline below which other arrivals of the same traffic do not explain a rate."""
OFTEN = 0.3
"""Share of requests from which on a cached first block would be felt in the mean TTFT."""
OWN = 0.7
"""Share of the requests with a first block of their own: no prefix is shared from its beginning."""
BLIND = 0.8
"""Hit rate over the baseline's; without a baseline, over 1: prefixes that a router keeps together hit almost always."""

RULES = Rules()
MEMORY = "Is the KV cache the limit?"
SMALLER = "Is the KV pool smaller than in the baseline?"
PREFIXES = "Do prompts hit the prefix cache?"


def _preempts(case: Case) -> Reply:
    return more("Preemptions per ended request", ratio(case.now.preemptions, case.now.num_ended), PREEMPTED)


def _shrank(case: Case) -> bool | None:
    """Whether the KV pool is smaller than that of the baseline. Without one, a pool for many requests is not small."""
    pool = ratio(case.was.num_blocks if case.was else None, case.now.num_blocks)
    if pool is None:
        return False if (case.now.fits or 0.0) >= SANE_FIT else None
    return pool >= SHRUNK


@RULES.add(
    MEMORY,
    "Add KV blocks: raise --gpu-memory-utilization or --kv-cache-memory-bytes, or use --kv-cache-dtype fp8.",
)
def kv_too_small(case: Case) -> list[Reply]:
    """The KV pool holds only a few requests of this traffic, so the engine preempts or queues."""
    now = case.now
    full = more("KV usage while requests wait", now.kv_max if now.waiting >= 0.5 else 0.0, FULL, percent)
    return [
        either("Does the KV pool limit the batch?", _preempts(case), full),
        yes(SMALLER, _shrank(case), BASELINE),
    ]


@RULES.add(
    MEMORY, "Lower --max-num-seqs to the requests that fit, or add KV blocks (--gpu-memory-utilization)."
)
def seqs_too_high(case: Case) -> list[Reply]:
    """The batch may hold more requests than the KV pool; the engine preempts and recomputes."""
    shrank = _shrank(case)
    return [
        _preempts(case),
        yes("Is the KV pool as large as in the baseline?", None if shrank is None else not shrank, BASELINE),
    ]


@RULES.add(PREFIXES, "Use --enable-prefix-caching.")
def caching_off(case: Case) -> list[Reply]:
    """The prefix cache is switched off, although prompts share their beginnings."""
    now, was, log = case.now, case.was, case.log
    off = None if now.caching is None else not now.caching
    common = log.most_common_head if log else None
    return [
        yes("Is prefix caching off?", off, is_sign=False),
        first(
            "Would it help?",
            yes("the baseline's cache is on:", was.caching if was else None, BASELINE),
            more("requests with one common first block", common, OFTEN, percent, LOG),
        ),
    ]


@RULES.add(PREFIXES, "Route by prefix: policy prefix-affinity or consistent-hash.")
def router_blind(case: Case) -> list[Reply]:
    """The router sends requests with one prefix to all replicas; each computes it anew."""
    gateway, was = case.gateway, case.was
    if gateway is None:
        return [yes("Are there replicas behind a router?", None, GATEWAY)]
    usual = was.hit_rate if was is not None and was.hit_rate else 1.0
    return [
        more("Replicas that share the traffic", float(gateway.num_replicas), 2.0, is_sign=False),
        yes("Does the router ignore prefixes?", not gateway.affinity, is_sign=False),
        less("Share of the prompt tokens cached on all replicas", gateway.hit_rate, BLIND * usual, percent),
    ]


def _hits_fell(case: Case) -> Reply:
    fell = ratio(case.now.hit_rate, case.was.hit_rate if case.was else None)
    return less("Hit rate over the baseline's", fell, HALVED, times, BASELINE)


def _own_heads(case: Case) -> float | None:
    return case.log.distinct_heads if case.log else None


OWN_HEADS = "Share of the requests with a first block of their own"


@RULES.add(
    PREFIXES,
    "Move time stamps, ids and names behind the stable part. prep cache lint LOG shows the place.",
)
def timestamp_at_head(case: Case) -> list[Reply]:
    """A text that changes with each request stands before the stable part of the prompts."""
    return [
        less(
            "Share of the prompt tokens that is cached", case.now.hit_rate, FEW_HITS, percent, is_sign=False
        ),
        _hits_fell(case),
        more(OWN_HEADS, _own_heads(case), OWN, percent, LOG, is_sign=False),
    ]


@RULES.add(
    PREFIXES,
    "Revert the template, or move what changed behind the stable part. prep cache lint LOG shows the place.",
)
def template_changed(case: Case) -> list[Reply]:
    """A new version of the prompt template differs early, so old prefixes no longer hit."""
    return [_hits_fell(case), less(OWN_HEADS, _own_heads(case), OWN, percent, LOG, is_sign=False)]


@RULES.add(PREFIXES, "Send cache_salt per tenant; reset the prefix cache.")
def missing_salt(case: Case) -> list[Reply]:
    """Requests no longer carry a cache salt, so the prefix of one tenant answers another."""
    log, was = case.log, case.was_log
    question = "Share of the requests with a cache salt, over the baseline's"
    if log is None or was is None:
        return [Reply(question, "not known", None, (BASELINE if log else LOG,))]
    if not was.salted:
        return [Reply(question, "the baseline has no salts", False)]
    return [less(question, log.salted / was.salted, HALVED, times)]
