"""Rules about times: those of the first token, the throughput, and those between two tokens."""

from __future__ import annotations

from engine.server.diagnosis.inputs import Case
from engine.server.diagnosis.options import BASELINE, GATEWAY, LOG, PROBE, SERVER_LOG
from engine.server.diagnosis.replies import (
    Reply,
    Rules,
    either,
    first,
    less,
    more,
    percent,
    ratio,
    seconds,
    times,
)  # fmt: skip

MANY_STEPS = 4.0
"""A budget below a quarter of the usual prompt gives no prompt and no decode the steps that they could fill."""
OFTEN = 0.3
"""Part of a time, or of the looks, that is too large for chance."""
MOST = 0.5
MAIN_TENANT = 0.6
"""More than all other tenants together, with a margin."""
HALVED = 0.6
"""Largest batch over the baseline's: the limit was lowered, as arrivals alone make a batch larger when they wait."""
TWICE = 2.0
FEW_WAIT = 2.0
"""Waiting requests of a burst that the next steps admit."""
SLOWER = 1.6
"""Ratio to the baseline that noise of a busy machine does not reach in a mean over a window."""
FILLED = 0.3
"""A prefix cache that fills makes first prompts slow, too; its hits rise."""
BURST = 1.25
"""More requests at first make them slow, too."""
EARLY = 3.0
"""Ratio of the first third of the window to the last. A queue that drains lowers TTFT alone, not ITL."""
COLD_S = 0.2
"""A first prompt of a prefix takes several times a hit, but a user does not notice it; a compilation lasts longer."""
PEAK = 10.0
"""ITL p99 over its mean. A step with one more chunk takes a few times as long as one without."""
LARGE = 3.0
"""Mean prompts in the largest step: a prompt far longer than most is computed whole."""
UNEQUAL = 4.0
"""ITL p99 over its median; steps with and without a chunk of a prompt differ by less."""
LAG_S = 0.05
"""An idle server answers in 20 to 25 ms, with the client's own time. On a busy machine it takes up to twice LAG_S."""
NOTICED_S = 0.1
"""A wait that a user notices."""
APART = 3.0
"""Times of a client over those of the server. A busy machine slows both; what comes between slows one."""
BUSY = 0.85
"""Processor time per second of one event loop, which has one core."""
REJECTED_DRAFTS = 0.3
"""Below, a draft of 4 tokens yields about 0.4 more tokens per step, less than it costs."""

RULES = Rules()
FIRST_TOKEN = "TTFT: where is it spent?"
THROUGHPUT = "Throughput: do requests arrive faster than they end?"
MANY_WAIT = "Requests that wait, in the mean"
STEPS = "ITL: is a step slow, or some steps?"


@RULES.add(FIRST_TOKEN, "Raise --max-loras (and --max-cpu-loras), or route by adapter (lora-affinity).")
def lora_storm(case: Case) -> list[Reply]:
    """Requests for more adapters than there are slots; adapters are swapped all the time."""
    now = case.now
    return [
        more("Adapters wanted per slot", ratio(now.lora_wanted, now.lora_slots), 1.5),
        more("Share of the looks in which an adapter waited", now.lora_waits, OFTEN, percent),
    ]


def _waits(case: Case, least: float = MOST) -> Reply:
    queue = case.now.queue
    is_sign = (queue or 0.0) >= NOTICED_S
    return more("Share of TTFT spent in the queue", case.now.of_ttft(queue), least, percent, is_sign=is_sign)


def _waits_not(case: Case) -> Reply:
    share = case.now.of_ttft(case.now.queue)
    return less("Share of TTFT spent in the queue", share, MOST, percent, is_sign=False)


@RULES.add(FIRST_TOKEN, "Raise --max-num-batched-tokens (and --long-prefill-token-threshold).")
def chunk_too_small(case: Case) -> list[Reply]:
    """The token budget of a step is so small that a prompt takes many steps."""
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


@RULES.add(
    FIRST_TOKEN,
    "Warm up before readiness: send requests of all sizes before the load balancer sees the server.",
)
def cold_start(case: Case) -> list[Reply]:
    """The first requests after a start pay for compilation, captures and page faults."""
    now = case.now
    return [
        more("TTFT at the window's start", now.ttft_early, COLD_S, seconds),
        more("TTFT at the window's start over that at its end", now.ttft_fell, EARLY, times),
        more("ITL at the window's start over that at its end", now.itl_fell, EARLY, times),
        less(
            "First tokens at the window's start over those at its end",
            now.load_fell,
            BURST,
            times,
            is_sign=False,
        ),
        less(
            "Hit rate at the window's end, less that at its start",
            now.hits_rose,
            FILLED,
            percent,
            is_sign=False,
        ),
    ]


@RULES.add(FIRST_TOKEN, "Raise --max-num-seqs to the requests that the KV pool holds.")
def seqs_too_low(case: Case) -> list[Reply]:
    """The batch may hold so few requests that others wait beside a KV cache with room."""
    now, was = case.now, case.was
    batch = ratio(now.running_max, was.running_max if was else None)
    return [
        _waits(case),
        less("KV usage at most", now.kv_max, MOST, percent, is_sign=False),
        less("Largest batch over the baseline's", batch, HALVED, times, BASELINE),
    ]


def _lags(case: Case) -> Reply:
    now = case.now
    least = max(LAG_S, 2 * (now.itl or 0.0))
    is_sign = (now.answer or 0.0) >= 2 * least
    return more(
        "Time until GET /health is answered, in the mean", now.answer, least, seconds, is_sign=is_sign
    )


@RULES.add(FIRST_TOKEN, "Send token ids, limit the size of bodies, or raise --api-server-count.")
def slow_tokenizer(case: Case) -> list[Reply]:
    """Requests wait for the tokenizer before the engine sees them."""
    probe = case.probe
    by_text = ratio(probe.ttft_text, probe.ttft_ids) if probe else None
    return [
        _lags(case),
        _waits_not(case),
        more("TTFT of a text over that of its token ids", by_text, TWICE, times, PROBE),
    ]


@RULES.add(
    FIRST_TOKEN,
    "Move the slow work (detokenising, logging, JSON) off the event loop, or raise --api-server-count.",
)
def slow_event_loop(case: Case) -> list[Reply]:
    """The process that speaks HTTP is busy; the engine is not."""
    gap = ratio(case.probe.gap if case.probe else None, case.now.itl)
    first_token = ratio(case.probe.ttft_ids if case.probe else None, case.now.ttft)
    return [
        _lags(case),
        _waits_not(case),
        either(
            "Do clients wait, and the engine does not?",
            more("client's pause between chunks over ITL", gap, APART, times, PROBE),
            more("client's least TTFT over the server's mean", first_token, APART, times, PROBE),
            more("processor time of the process that speaks HTTP", case.now.cpu, BUSY, percent),
        ),
    ]


@RULES.add(
    THROUGHPUT, "Limit rate and tokens per tenant at the gateway, or use --scheduling-policy priority."
)
def noisy_tenant(case: Case) -> list[Reply]:
    """One tenant sends most of the work, and all others wait behind it."""
    gateway, log = case.gateway, case.log
    tenant = gateway.tenant_share if gateway and gateway.num_tenants > 1 else None
    group = (log.heaviest_share if log.heaviest else 0.0) if log else None
    return [
        _waits(case, OFTEN),
        more(MANY_WAIT, case.now.waiting, FEW_WAIT, is_sign=False),
        first(
            "Does one of several tenants send most of the work?",
            more("tenant's share of the tokens", tenant, MAIN_TENANT, percent, GATEWAY),
            more("share of one model, priority and salt", group, MAIN_TENANT, percent, LOG),
        ),
    ]


@RULES.add(
    THROUGHPUT,
    "Shed load (a bounded queue), or add a replica. No setting of this server removes the queue.",
)
def overload(case: Case) -> list[Reply]:
    """Requests arrive faster than the server completes them."""
    now, was = case.now, case.was
    arrivals = ratio(now.arrivals, was.arrivals if was else None)
    queue = ratio(now.waiting, max(was.waiting, 0.5) if was else None)
    growth = ratio(now.waiting_growth, now.running_max)
    return [
        _waits(case),
        more(MANY_WAIT, now.waiting, FEW_WAIT),
        either(
            "Does the queue grow?",
            more("growth in the window over the largest batch", growth, 1.0, times),
            more("queue over the baseline's", queue, TWICE, times),
        ),
        *([] if arrivals is None else [more("Arrivals over the baseline's", arrivals, 1.3, times)]),
    ]


@RULES.add(
    STEPS,
    "Use a draft that fits the traffic, or fewer num_speculative_tokens, or none (--speculative-config).",
)
def draft_mismatch(case: Case) -> list[Reply]:
    """The target model rejects most draft tokens; they cost time and gain nothing."""
    return [less("Share of the draft tokens that is accepted", case.now.acceptance, REJECTED_DRAFTS, percent)]


@RULES.add(STEPS, "Use --enable-chunked-prefill with a lower --max-num-batched-tokens.")
def chunking_off(case: Case) -> list[Reply]:
    """A whole long prompt is computed in one step, and all running requests wait for it."""
    now, before = case.now, case.was.itl_p99 if case.was else None
    return [
        more("ITL p99", now.itl_p99, LAG_S, seconds),
        more("ITL p99 over its mean", ratio(now.itl_p99, now.itl), PEAK, times),
        more(
            "Tokens of the largest step over the mean prompt",
            ratio(now.step_tokens_max, now.prompt_len),
            LARGE,
            times,
        ),
        _waits_not(case),
        more("ITL p99 over the baseline's", ratio(now.itl_p99, before), SLOWER, times, BASELINE),
    ]


def _slower(case: Case) -> Reply:
    itl = ratio(case.now.itl, case.was.itl if case.was else None)
    return more("ITL over the baseline's", itl, SLOWER, times, BASELINE)


def _extra_step(case: Case) -> float | None:
    """Return the seconds by which ITL exceeds the baseline's."""
    now, was = case.now.itl, case.was.itl if case.was else None
    return None if now is None or was is None else now - was


def _extra_prefill(case: Case) -> float | None:
    """Return the seconds by which prefill exceeds the baseline's, over those by which a step does.

    1 for a prompt of one step if each step takes longer by a constant; more if a step grows with its tokens.
    """
    now, was = case.now.prefill, case.was.prefill if case.was else None
    return None if now is None or was is None else ratio(now - was, _extra_step(case))


def _ranks_differ(case: Case) -> Reply:
    """Ask whether the slowest rank's extra time is a large part of a step."""
    gap = ratio(case.rank_gap, case.now.itl)
    return more("Slowest rank less the fastest, over a step", gap, OFTEN, percent, SERVER_LOG)


def _ranks_agree(case: Case) -> Reply:
    gap = ratio(case.rank_gap, case.now.itl)
    return less("Slowest rank less the fastest, over a step", gap, OFTEN, percent, SERVER_LOG, is_sign=False)


GROWS = "Longer prefill over longer steps"


@RULES.add(STEPS, "Distribute heads, layers or experts evenly (--enable-eplb for experts).")
def unbalanced_rank(case: Case) -> list[Reply]:
    """One rank has more work than the others, so its share grows with the tokens of a step."""
    return [_ranks_differ(case), _slower(case), more(GROWS, _extra_prefill(case), TWICE, times, BASELINE)]


@RULES.add(
    STEPS, "Compare the ranks' step times and clocks (nvidia-smi, NCCL tests), and replace the slow one."
)
def straggler(case: Case) -> list[Reply]:
    """One rank is slow, and every step waits for the slowest rank."""
    return [
        _ranks_differ(case),
        _slower(case),
        less(GROWS, _extra_prefill(case), TWICE, times, BASELINE, is_sign=False),
    ]


@RULES.add(STEPS, "Isolate the server: CPU sets and limits, and no batch jobs on the same machine.")
def noisy_neighbour(case: Case) -> list[Reply]:
    """Another program takes processor time now and then; equal steps take unequal time."""
    now = case.now
    return [
        _slower(case),
        _ranks_agree(case),
        more("ITL p99 over its median", ratio(now.itl_p99, now.itl_p50), UNEQUAL, times, is_sign=False),
    ]


@RULES.add(STEPS, "Profile a step (prep trace, py-spy), and move the work out of the engine's loop.")
def export_in_step(case: Case) -> list[Reply]:
    """Something other than the model takes the same time in every step, such as logging or an exporter."""
    now = case.now
    return [
        _slower(case),
        _ranks_agree(case),
        less("ITL p99 over its median", ratio(now.itl_p99, now.itl_p50), UNEQUAL, times, is_sign=False),
        less(GROWS, _extra_prefill(case), TWICE, times, BASELINE, is_sign=False),
    ]
