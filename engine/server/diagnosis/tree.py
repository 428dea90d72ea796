"""The decision trees: branches in the order in which they are asked, and for each cause the replies that must hold.

The first cause whose replies all hold is named. So a branch stands before those whose symptoms it produces: times
that cannot be trusted before slow ones, failures before memory, memory before prefix hits, and these before queues.

Limits are shares and ratios, so that they hold on any machine. Limits in seconds are those of a human or a clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from engine.server.diagnosis.causes import Cause
from engine.server.diagnosis.figures import Case
from engine.server.diagnosis.replies import Reply, either, less, more, number, percent, ratio, seconds, times

CLOCK_S = 3.0
"""The header Date has a resolution of 1 s, and a look takes part of another."""
STUCK = 0.5
"""A queue may have nothing running at one look; at half of them something holds it."""
LEFT_KV = 0.05
"""KV usage while nothing runs. vLLM counts cached blocks without an owner as free, so it is 0 when healthy."""
LEAK = 1.5
"""KV usage over what all running requests at their full length need."""
LOST = 0.15
"""Share of requests that fail or are aborted. A few users in a hundred hang up."""
RETRIED = 1.3
"""Attempts per request. A healthy retry budget is 0.1."""
ALL = 0.95
PREEMPTED = 0.1
"""Preemptions per ended request; each repeats its prefill."""
FULL = 0.9
SANE_FIT = 8.0
"""Requests that a pool should hold; with fewer, batching gains little."""
FEW_HITS = 0.05
WAS_HITS = 0.15
HALVED = 0.6
TWICE = 2.0
MANY_STEPS = 4.0
"""A budget below a quarter of the usual prompt gives no prompt and no decode the steps that they could fill."""
OFTEN = 0.3
MOST = 0.5
MAIN_TENANT = 0.6
MIN_WAITING = 2.0
SLOWER = 1.6
"""Ratio to the baseline that noise of a busy machine does not reach in a mean over a window."""
EARLY = 3.0
COLD_S = 0.2
"""A first prompt of a prefix takes several times a hit, but a user does not notice it; a compilation lasts longer."""
PEAK = 10.0
"""ITL p99 over its mean. A step with one more chunk takes a few times as long as one without."""
LARGE = 3.0
"""Mean prompts in the largest step: a prompt far longer than most is computed whole."""
JITTER = 0.6
LAG_S = 0.05
"""A client notices 50 ms; an idle event loop answers in a few."""
EXTRA_S = 0.1
"""Time between a client and the engine that a user notices; HTTP itself takes a few milliseconds."""
BUSY = 0.85
REJECTED_DRAFTS = 0.3
"""Below, a draft of 4 tokens yields about 0.4 more tokens per step, less than it costs."""

LOG, PROBE, GATEWAY, BASELINE = "--request-log", "--probe", "--gateway", "--baseline"
Rule = Callable[[Case], list[Reply]]


class Branch(NamedTuple):
    """A question of the tree and the causes below it."""

    question: str
    rules: dict[Cause, Rule]


def _clock_skew(case: Case) -> list[Reply]:
    now, log = case.now, case.log
    impossible = Reply("durations that cannot be:", ", ".join(now.negative) or "none", bool(now.negative))
    header = more("server's clock differs by", _abs(now.clock), CLOCK_S, seconds)
    logged = more("arrivals in the log differ by", _abs(log.skew if log else None), CLOCK_S, seconds, LOG)
    return [either("Do the clocks contradict each other?", impossible, header, logged)]


def _never_fits(case: Case) -> list[Reply]:
    now = case.now
    return [
        more("In how many looks did requests wait while none ran?", now.stuck, STUCK, percent),
        less("Does an adapter wait for a slot?", now.lora_waits, OFTEN, percent),
    ]


def _block_leak(case: Case) -> list[Reply]:
    now = case.now
    needed = ratio(now.running_max * ((now.prompt_len or 0) + (now.output_len or 0)), now.pool)
    return [
        either(
            "Is KV in use that no request can need?",
            more("while nothing runs", now.kv_unowned, LEFT_KV, percent),
            more("over the need of all running requests", ratio(now.kv_least, needed), LEAK, times),
        )
    ]


def _bad_canary(case: Case) -> list[Reply]:
    gateway = case.gateway
    if gateway is None or not gateway.canary:
        has = Reply(
            "Is there a canary?",
            "not known" if gateway is None else "no",
            None if gateway is None else False,
            GATEWAY,
        )
        return [has]
    gap = None if gateway.canary_failed is None else gateway.canary_failed - (gateway.other_failed or 0.0)
    return [
        either(
            f"Is version {gateway.canary} worse than the other?",
            more("fails more by", gap, LOST / 2, percent),
            more("TTFT", ratio(gateway.canary_ttft, gateway.other_ttft), TWICE, times),
            more("ITL", ratio(gateway.canary_itl, gateway.other_itl), SLOWER, times),
        )
    ]


def _gateway_retry_storm(case: Case) -> list[Reply]:
    gateway = case.gateway
    return [
        more(
            "How many attempts does the gateway make per request?",
            gateway.attempts_per_response if gateway else None, RETRIED, number, GATEWAY,
        )
    ]  # fmt: skip


def _retry_storm(case: Case) -> list[Reply]:
    log = case.log
    return [
        _aborts(case),
        more("What share came again after an abort?", log.again if log else None, LOST / 3, percent, LOG),
    ]


def _refused(case: Case) -> Reply:
    now = case.now
    refused = now.responses.get("4xx", 0.0) - now.rejections
    total = sum(now.responses.values())
    return more("What share of the responses is 4xx (without 429)?", ratio(refused, total), LOST, percent)


def _aborts(case: Case, least: float = LOST) -> Reply:
    return more("What share of the requests is aborted?", case.now.end_share("abort"), least, percent)


def _timeout(case: Case) -> list[Reply]:
    said = case.probe.said if case.probe else None
    early = Reply(
        "a request of the probe ends with",
        said or "an answer",
        None if said is None else "408" in said,
        PROBE,
    )
    return [_aborts(case), either("Does the server end requests early?", early, _refused(case))]


def _model_len(case: Case) -> list[Reply]:
    return [
        _refused(case),
        less("What share of the requests is aborted?", case.now.end_share("abort") or 0.0, LOST, percent),
    ]


def _queue_limit(case: Case) -> list[Reply]:
    now = case.now
    tried = now.num_ended + now.rejections
    return [
        more(
            "What share of the requests meets a full queue?", ratio(now.rejections, tried), LOST / 3, percent
        ),
        less("How many requests wait?", now.waiting, MIN_WAITING),
    ]


def _wrong_stop_ids(case: Case) -> list[Reply]:
    now, was, probe = case.now, case.was, case.probe
    at_length = now.end_share("length")
    return [
        more("What share of the answers ends at max_tokens?", at_length, ALL, percent),
        either(
            "Should answers end earlier?",
            less("greetings end by themselves in", probe.ends if probe else None, 0.0, percent, PROBE),
            less(
                "the baseline ended at max_tokens in",
                was.end_share("length") if was else None,
                HALVED,
                percent,
                BASELINE,
            ),
        ),
    ]


def _preempts(case: Case) -> Reply:
    now = case.now
    return more("How many preemptions per ended request?", ratio(now.preemptions, now.num_ended), PREEMPTED)


def _max_num_seqs(case: Case) -> list[Reply]:
    now, was = case.now, case.was
    blocks = ratio(was.num_blocks if was else None, now.num_blocks)
    pool = (
        more("How many requests of this length does the KV pool hold?", now.fits, SANE_FIT)
        if blocks is None
        else less("How large was the KV pool in the baseline?", blocks, 1.1, times)
    )
    return [_preempts(case), pool]


def _kv_pool(case: Case) -> list[Reply]:
    now, was = case.now, case.was
    blocks = ratio(was.num_blocks if was else None, now.num_blocks)
    small = (
        less("How many requests of this length does the KV pool hold?", now.fits, SANE_FIT)
        if blocks is None
        else more("How large was the KV pool in the baseline?", blocks, 1.2, times)
    )
    full = more("KV usage while requests wait", now.kv_max if now.waiting >= 0.5 else 0.0, FULL, percent)
    return [either("Does the KV pool limit the batch?", _preempts(case), full), small]


def _hits(case: Case, most: float) -> Reply:
    return less("What share of the prompt tokens is cached?", case.now.hit_rate, most, percent)


def _affinity_less(case: Case) -> list[Reply]:
    gateway = case.gateway
    if gateway is None:
        return [Reply("Are there replicas behind a router?", "not known", None, GATEWAY)]
    was = case.was
    return [
        more("How many replicas share the traffic?", float(gateway.num_replicas), 2.0),
        Reply("Does the router ignore prefixes?", "no" if gateway.affinity else "yes", not gateway.affinity),
        less("What share of the prompt tokens is cached on all replicas?", gateway.hit_rate,
             0.8 * was.hit_rate if was and was.hit_rate else 0.8, percent),
    ]  # fmt: skip


def _caching_off(case: Case) -> list[Reply]:
    now, was, log = case.now, case.was, case.log
    off = None if now.caching is None else not now.caching
    return [
        Reply("Is prefix caching off?", {True: "yes", False: "no", None: "not known"}[off], off),
        either(
            "Would it help?",
            Reply(
                "the baseline's cache is on:",
                str(was.caching if was else None),
                was.caching if was else None,
                BASELINE,
            ),
            more(
                "requests with one common first block",
                log.most_common_head if log else None,
                OFTEN,
                percent,
                LOG,
            ),
        ),
    ]


def _fell(case: Case) -> Reply:
    return less(
        "What is the hit rate, relative to the baseline?",
        ratio(case.now.hit_rate, case.was.hit_rate if case.was else None), HALVED, times, BASELINE,
    )  # fmt: skip


def _own_heads(case: Case) -> tuple[str, float | None, float, Callable[[float], str], str]:
    share = case.log.distinct_heads if case.log else None
    return "How many requests have a first block of their own?", share, 0.7, percent, LOG


def _volatile_head(case: Case) -> list[Reply]:
    return [
        _hits(case, FEW_HITS),
        _fell(case),
        more(*_own_heads(case)),
    ]


def _template(case: Case) -> list[Reply]:
    return [
        _fell(case),
        less(*_own_heads(case)),
    ]


def _poisoned(case: Case) -> list[Reply]:
    now, was = case.now, case.was
    differs = case.probe.differs if case.probe is not None else None
    answers = {True: "other tokens", False: "the same tokens", None: "not known"}[differs]
    return [
        either(
            "Does the shared cache change answers, or join tenants?",
            Reply("one prompt with and without a salt gets", answers, differs, PROBE),
            more(
                "hit rate over the baseline's",
                ratio(now.hit_rate, was.hit_rate if was else None),
                SLOWER,
                times,
                BASELINE,
            ),
        )
    ]


def _lora(case: Case) -> list[Reply]:
    now = case.now
    return [
        more("How many adapters are wanted per slot?", ratio(now.lora_wanted, now.lora_slots), 1.5),
        more("In how many looks did an adapter wait?", now.lora_waits, OFTEN, percent),
    ]


def _waits(case: Case, least: float = MOST) -> Reply:
    now = case.now
    return more("What share of TTFT is spent in the queue?", now.of_ttft(now.queue), least, percent)


def _chunk_small(case: Case) -> list[Reply]:
    now = case.now
    computed = (now.prompt_len or 0.0) * (1 - (now.hit_rate or 0.0))
    return [
        more(
            "Steps as large as the largest that one prompt takes",
            ratio(computed, now.step_tokens_max),
            MANY_STEPS,
        ),
        either(
            "Does TTFT go into queue and prefill?",
            _waits(case),
            more("prefill", now.of_ttft(now.prefill), MOST, percent),
        ),
    ]


def _seqs_low(case: Case) -> list[Reply]:
    now, was = case.now, case.was
    batch = ratio(now.running_max, was.running_max if was else None)
    return [
        _waits(case),
        less("KV usage at most", now.kv_max, MOST, percent),
        less("Largest batch over the baseline's", batch, HALVED, times, BASELINE),
    ]


def _noisy_tenant(case: Case) -> list[Reply]:
    gateway, log = case.gateway, case.log
    tenant = (gateway.tenant_share if gateway.num_tenants > 1 else 0.0) if gateway else None
    group = (log.heaviest_share if log.heaviest else 0.0) if log else None
    return [
        _waits(case, OFTEN),
        either(
            "Does one of several tenants send most of the work?",
            more("tenant's share of the tokens", tenant, MAIN_TENANT, percent, GATEWAY),
            more("share of the heaviest model and priority", group, MAIN_TENANT, percent, LOG),
        ),
    ]


def _arrivals(case: Case) -> float | None:
    return ratio(case.now.arrivals, case.was.arrivals if case.was else None)


def _overload(case: Case) -> list[Reply]:
    now, was, arrivals = case.now, case.was, _arrivals(case)
    growth = more(
        "growth in the window over the largest batch", ratio(now.waiting_growth, now.running_max), 1.0, times
    )
    queue = ratio(now.waiting, max(was.waiting, 0.5) if was else None)
    return [
        _waits(case),
        more("How many requests wait?", now.waiting, MIN_WAITING),
        either("Does the queue grow?", growth, more("queue over the baseline's", queue, TWICE, times)),
        *([] if arrivals is None else [more("Arrivals over the baseline's", arrivals, 1.3, times)]),
    ]


def _cold(case: Case) -> list[Reply]:
    now = case.now
    return [
        more("TTFT at the window's start", now.ttft_early, COLD_S, seconds),
        more(
            "TTFT at the window's start over that at its end",
            ratio(now.ttft_early, now.ttft_late),
            EARLY,
            times,
        ),
        less("By how many did the queue grow in the window?", now.waiting_growth, 0.0),
    ]


def _lags(case: Case) -> Reply:
    now = case.now
    least = max(LAG_S, 2 * (now.itl or 0.0))
    return more("How long does GET /health wait for an answer, in the mean?", now.answer, least, seconds)


def _tokeniser(case: Case) -> list[Reply]:
    probe = case.probe
    by_text = ratio(probe.ttft_text, probe.ttft_ids) if probe else None
    return [
        _lags(case),
        less("What share of TTFT is spent in the queue?", case.now.of_ttft(case.now.queue), MOST, percent),
        more("TTFT of a text over that of its token ids", by_text, TWICE, times, PROBE),
    ]  # fmt: skip


def _event_loop(case: Case) -> list[Reply]:
    now, was, probe = case.now, case.was, case.probe
    extra = probe.ttft_ids - (now.ttft or 0.0) if probe and probe.ttft_ids else None
    health = ratio(now.answer, was.answer if was else None)
    return [
        _lags(case),
        less("What share of TTFT is spent in the queue?", now.of_ttft(now.queue), MOST, percent),
        either(
            "Do clients wait, and the engine does not?",
            more("client's TTFT less the server's", extra, EXTRA_S, seconds, PROBE),
            more("wait of /health over the baseline's", health, TWICE, times, BASELINE),
            more("processor time of the process that speaks HTTP", now.cpu, BUSY, percent),
        ),
    ]  # fmt: skip


def _draft(case: Case) -> list[Reply]:
    return [
        less("What share of the draft tokens is accepted?", case.now.acceptance, REJECTED_DRAFTS, percent)
    ]


def _chunking_off(case: Case) -> list[Reply]:
    now = case.now
    return [
        more("ITL p99", now.itl_p99, LAG_S, seconds),
        more("ITL p99 over its mean", ratio(now.itl_p99, now.itl), PEAK, times),
        more(
            "Tokens of the largest step over the mean prompt",
            ratio(now.step_tokens_max, now.prompt_len),
            LARGE,
            times,
        ),
        less("TTFT spent in the queue", now.of_ttft(now.queue), MOST, percent),
    ]


def _slower(case: Case) -> Reply:
    itl = ratio(case.now.itl, case.was.itl if case.was else None)
    return more("ITL over the baseline's", itl, SLOWER, times, BASELINE)


def _spread(case: Case, is_even: bool) -> Reply:
    question = "Spread of the mean ITL between looks"
    return (less if is_even else more)(question, case.now.itl_spread, JITTER, percent)


def _prefill_slower(case: Case) -> float | None:
    """Return the slow-down of prefill over that of decode; 1 if every step takes the same multiple of its time."""
    now, was = case.now, case.was
    return ratio(ratio(now.prefill, was.prefill if was else None), ratio(now.itl, was.itl if was else None))


def _neighbour(case: Case) -> list[Reply]:
    return [_slower(case), _spread(case, False)]


def _unbalanced(case: Case) -> list[Reply]:
    question = "Slow-down of prefill over that of decode: does it grow with the work?"
    return [_slower(case), more(question, _prefill_slower(case), SLOWER, times, BASELINE)]


def _export(case: Case) -> list[Reply]:
    question = "Slow-down of prefill over that of decode: is a step longer by a constant?"
    return [
        _slower(case),
        _spread(case, True),
        less(question, _prefill_slower(case), HALVED, times, BASELINE),
    ]


def _straggler(case: Case) -> list[Reply]:
    return [_slower(case), _spread(case, True)]


def _abs(value: float | None) -> float | None:
    return None if value is None else abs(value)


TREE = (
    Branch("Can the times be trusted?", {Cause.CLOCK_SKEW: _clock_skew}),
    Branch(
        "Do requests make progress?",
        {Cause.ABORT_LEAK: _block_leak, Cause.REQUEST_NEVER_FITS: _never_fits},
    ),
    Branch(
        "Do requests fail or come again?",
        {
            Cause.BAD_CANARY: _bad_canary,
            Cause.GATEWAY_RETRY_STORM: _gateway_retry_storm,
            Cause.RETRY_STORM: _retry_storm,
            Cause.TIMEOUT_TOO_SHORT: _timeout,
            Cause.MODEL_LEN_TOO_SHORT: _model_len,
            Cause.QUEUE_LIMIT: _queue_limit,
        },
    ),
    Branch("Do answers end where they should?", {Cause.WRONG_STOP_ID: _wrong_stop_ids}),
    Branch(
        "Is the KV cache the limit?",
        {Cause.KV_TOO_SMALL: _kv_pool, Cause.SEQS_TOO_HIGH: _max_num_seqs},
    ),
    Branch(
        "Do prompts hit the prefix cache?",
        {
            Cause.CACHING_OFF: _caching_off,
            Cause.ROUTER_BLIND: _affinity_less,
            Cause.TIMESTAMP_AT_HEAD: _volatile_head,
            Cause.TEMPLATE_CHANGED: _template,
            Cause.MISSING_SALT: _poisoned,
        },
    ),
    Branch(
        "TTFT: where is it spent?",
        {
            Cause.LORA_STORM: _lora,
            Cause.CHUNK_TOO_SMALL: _chunk_small,
            Cause.SEQS_TOO_LOW: _seqs_low,
            Cause.SLOW_TOKENIZER: _tokeniser,
            Cause.SLOW_EVENT_LOOP: _event_loop,
            Cause.COLD_START: _cold,
        },
    ),
    Branch(
        "Throughput: do requests arrive faster than they end?",
        {Cause.NOISY_TENANT: _noisy_tenant, Cause.OVERLOAD: _overload},
    ),
    Branch(
        "ITL: is a step slow, or some steps?",
        {
            Cause.DRAFT_MISMATCH: _draft,
            Cause.CHUNKING_OFF: _chunking_off,
            Cause.UNBALANCED_RANK: _unbalanced,
            Cause.NOISY_NEIGHBOUR: _neighbour,
            Cause.EXPORT_IN_STEP: _export,
            Cause.STRAGGLER: _straggler,
        },
    ),
)
"""Every cause stands in exactly one branch."""
