"""Rules about requests as a whole: clocks that disagree; requests that do not advance, fail, or come again."""

from __future__ import annotations

from engine.server.diagnosis.inputs import Case
from engine.server.diagnosis.options import BASELINE, GATEWAY, LOG, PROBE
from engine.server.diagnosis.replies import (
    Reply,
    Rules,
    either,
    first,
    less,
    more,
    number,
    percent,
    ratio,
    seconds,
    times,
    yes,
)  # fmt: skip

CLOCK_S = 3.0
"""The header Date has a resolution of 1 s, and a look takes part of another."""
DATE_S = 1.0
STUCK = 0.5
"""A queue may have nothing running at one look; at half of them something holds it."""
LEFT_KV = 0.05
"""KV usage while nothing runs. vLLM counts cached blocks without an owner as free, so it is 0 when healthy."""
LEAK = 1.5
"""KV usage over what all running requests at their full length need."""
LOST = 0.15
"""Share of requests that fail or are aborted. A few users in a hundred hang up."""
AGAIN = 0.05
"""Share of requests that are refused, or sent again: it is 0 when nothing is wrong."""
RETRIED = 1.3
"""Attempts per request. A healthy retry budget is 0.1."""
SLOWER = 1.6
"""Ratio of means that noise of a busy machine does not reach over a window."""
FEW_WAIT = 2.0
"""Waiting requests of a burst that the next steps admit."""
ALL = 0.95
MANY = 0.6
"""Share of answers that end at max_tokens in traffic whose other answers end by themselves."""
HALF = 0.5

RULES = Rules()
CLOCKS = "Can the times be trusted?"
PROGRESS = "Do requests make progress?"
FAILURES = "Do requests fail or come again?"
ENDS = "Do answers end where they should?"


@RULES.add(CLOCKS, "Synchronise clocks (NTP) and compute durations from a monotonic clock.")
def clock_skew(case: Case) -> list[Reply]:
    """Clocks disagree, so times in the metrics are wrong; the server may be healthy."""
    now, log = case.now, case.log
    impossible = Reply("durations that cannot be:", ", ".join(now.negative) or "none", bool(now.negative))
    header = more("server's clock differs by", _abs(now.clock), CLOCK_S, _coarse)
    skew = log.skew if log is not None and now.num_ended else None
    logged = more("arrivals in the log differ by", _abs(skew), CLOCK_S, _coarse, LOG)
    return [either("Do the clocks contradict each other?", impossible, header, logged)]


def _abs(value: float | None) -> float | None:
    return None if value is None else abs(value)


def _coarse(value: float) -> str:
    """Return a difference of clocks, which the header Date tells to a second."""
    return seconds(value) if value >= DATE_S else f"less than {seconds(DATE_S)}"


@RULES.add(
    PROGRESS,
    "Find the path that ends a request without freeing it (usually abort), and upgrade or patch it. "
    "A restart only buys time.",
)
def abort_leak(case: Case) -> list[Reply]:
    """Requests that ended keep their KV blocks."""
    now = case.now
    needed = ratio(now.running_max * ((now.prompt_len or 0) + (now.output_len or 0)), now.pool)
    return [
        either(
            "Is KV in use that no request can need?",
            more("while nothing runs", now.kv_unowned, LEFT_KV, percent),
            more("over the need of all running requests", ratio(now.kv_least, needed), LEAK, times),
        )
    ]


@RULES.add(
    PROGRESS,
    "Abort it and lower --max-model-len, so that such requests get status 400; or add KV blocks.",
)
def request_never_fits(case: Case) -> list[Reply]:
    """The first request of the queue needs more KV blocks than the pool has, and nothing passes it."""
    now = case.now
    return [
        more("In how many looks did requests wait while none ran?", now.stuck, STUCK, percent),
        less("In how many looks did an adapter wait for a slot?", now.lora_waits, HALF, percent),
    ]


@RULES.add(FAILURES, "Roll back: prep gateway canary URL 0.")
def bad_canary(case: Case) -> list[Reply]:
    """The new version fails or is slower than the old one beside it."""
    gateway = case.gateway
    if gateway is None or not gateway.canary:
        return [yes("Is there a canary?", None if gateway is None else False, GATEWAY)]
    gap = None if gateway.canary_failed is None else gateway.canary_failed - (gateway.other_failed or 0.0)
    return [
        either(
            f"Is version {gateway.canary} worse than the other?",
            more("fails more by", gap, LOST / 2, percent),
            more("TTFT", ratio(gateway.canary_ttft, gateway.other_ttft), 2.0, times),
            more("ITL", ratio(gateway.canary_itl, gateway.other_itl), SLOWER, times),
        )
    ]


@RULES.add(
    FAILURES, "Lower retries.most and retries.budget, raise time-outs, and let the breaker open earlier."
)
def gateway_retry_storm(case: Case) -> list[Reply]:
    """The gateway sends requests again and multiplies the load on slow replicas."""
    attempts = case.gateway.attempts_per_response if case.gateway else None
    return [more("Attempts of the gateway per request", attempts, RETRIED, number, GATEWAY)]


def _aborts(case: Case) -> Reply:
    return more("Share of the requests that are aborted", case.now.end_share("abort"), LOST, percent)


@RULES.add(
    FAILURES,
    "Back off exponentially with a retry budget, and refuse early: a bounded queue with status 429 or 503.",
)
def retry_storm(case: Case) -> list[Reply]:
    """Clients time out, abort and send the same request again, so the load feeds itself."""
    again = case.log.again if case.log else None
    return [_aborts(case), more("Share that came again after an abort", again, AGAIN, percent, LOG)]


def _refused(case: Case) -> Reply:
    now = case.now
    share = ratio(now.responses.get("4xx", 0.0) - now.rejections, sum(now.responses.values()))
    return more("Share of the responses that are 4xx (without 429)", share, LOST, percent)


@RULES.add(FAILURES, "Raise the time-out (here --request-timeout), or limit max_tokens.")
def timeout_too_short(case: Case) -> list[Reply]:
    """The time-out of a request is below the time that ordinary answers take."""
    said = case.probe.said if case.probe else None
    early = Reply(
        "a request of the probe ends with",
        said or "an answer",
        None if said is None else "408" in said,
        (PROBE,),
    )
    return [_aborts(case), either("Does the server end requests early?", early, _refused(case))]


@RULES.add(
    FAILURES,
    "Compare --max-model-len and --hf-overrides (rope) with the model's config.json and the prompts.",
)
def model_len_too_short(case: Case) -> list[Reply]:
    """The context limit or rope settings do not fit the model or its traffic."""
    aborted = case.now.end_share("abort") or 0.0
    return [
        _refused(case),
        less("Share of the requests that are aborted", aborted, LOST, percent, is_sign=False),
    ]


@RULES.add(FAILURES, "Raise the limit on queued requests (here --max-num-queued-reqs).")
def queue_limit(case: Case) -> list[Reply]:
    """The limit on waiting requests refuses ordinary bursts, although the queue is short."""
    now = case.now
    refused = ratio(now.rejections, now.num_ended + now.rejections)
    return [
        more("Share of the requests that meet a full queue", refused, AGAIN, percent),
        less("Requests that wait, in the mean", now.waiting, FEW_WAIT, is_sign=False),
    ]


@RULES.add(ENDS, "Compare eos_token_id of generation_config.json and the chat template with the tokenizer.")
def wrong_stop_id(case: Case) -> list[Reply]:
    """Answers do not end where the model ends them; they run to max_tokens."""
    now, was, probe = case.now, case.was, case.probe
    greeted = None
    if probe is not None and probe.num_chats:
        greeted = Reply(
            "greetings whose answer ends by itself:",
            f"{probe.num_ends} of {probe.num_chats}",
            not probe.num_ends,
        )
    before = was.end_share("length") if was else None
    return [
        more(
            "Share of the answers that end at max_tokens",
            now.end_share("length"),
            ALL,
            percent,
            is_sign=False,
        ),
        first(
            "Should answers end earlier?",
            less("share in the baseline", before, MANY, percent, BASELINE),
            greeted or Reply("greetings whose answer ends by itself:", "not measured", None, (PROBE,)),
        ),
    ]
