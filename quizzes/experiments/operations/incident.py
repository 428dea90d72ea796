from dataclasses import replace
from random import Random
from typing import Any, Literal, get_args

from engine.sim.cost import Efficiency, Rates
from engine.sim.memory import plan_memory
from engine.sim.run import make_engine, simulate
from engine.sim.workload import SimRequest
from quizzes.experiments import Result, arg, deploy, experiment

Fault = Literal[
    "none",
    "volatile_prompt",
    "small_pool",
    "no_chunking",
    "tiny_budget",
    "missing_stop",
    "overload",
    "throttled_gpu",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)
SYSTEM, QUESTION, ANSWER = 1200, 200, 100
LONG_PROMPT = 7000
MAX_TOKENS = 600
RATE = 8.0
THROTTLE = 3.0
"""Slow-down of an overheated card."""


@experiment("E52", seconds=30)
def incident(
    fault: Fault = "volatile_prompt",
    seed: int = arg(0, 0, 10_000),
    minutes: float = arg(1.0, 0.5, 10),
) -> Result:
    """Put one fault into a chat service and compare its dashboard with the healthy one.

    Both serve the same requests on the real scheduler in virtual time: chats behind one system prompt and one long
    document in twenty, on one H100 with an 8 B model. Faults: a time stamp at the head of the prompt, a KV pool of a
    fortieth, prompts that are not chunked, a token budget of 64, a stop token that is not recognised, eight times the
    arrivals, a card that is three times slower.

    Returns: The same requests, with and without the fault.
        yesterday, today [panel]
        ratio [x]: Today over yesterday, where yesterday is not zero.
    """
    healthy, faulty = _panel("none", seed, minutes), _panel(fault, seed, minutes)
    return Result(
        yesterday={name: round(value, 4) for name, value in healthy.items()},
        today={name: round(value, 4) for name, value in faulty.items()},
        ratio={name: round(faulty[name] / value, 3) for name, value in healthy.items() if value},
    )


def _panel(fault: Fault, seed: int, minutes: float) -> dict[str, float]:
    """Dashboard of a few minutes by figure. Seconds are virtual."""
    budget = {"no_chunking": 16384, "tiny_budget": 64}.get(fault, 1024)
    limits = {"max_num_batched_tokens": budget, "max_num_seqs": 128, "max_model_len": 8192}
    deployment = deploy("llama-3-8b", "h100", **limits)
    rates = Rates.of(deployment.hardware, "bfloat16", Efficiency())
    if fault == "throttled_gpu":
        fields = ("bytes_per_s", "flops", "attention_bytes_per_s", "attention_flops")
        slow = {name: getattr(rates, name) / THROTTLE for name in fields}
        rates = replace(rates, **slow, step_overhead=rates.step_overhead * THROTTLE)
    num_blocks = plan_memory(deployment).num_blocks // (40 if fault == "small_pool" else 1)
    engine = make_engine(deployment, rates=rates, num_blocks=num_blocks)
    report: Any = simulate(engine, _requests(fault, seed, minutes))
    return dict(
        waiting=report.mean_waiting,
        running=report.mean_running,
        kv_usage=report.peak_kv_cache_usage,
        preemptions=report.num_preemptions,
        hit_rate=report.prefix_cache_hit_rate,
        ttft_p50=report.ttft.p50,
        ttft_p99=report.ttft.p99,
        itl_p50=report.itl.p50,
        itl_p99=report.itl.p99,
        itl_max=report.itl.max,
        tokens_per_step=(report.prefill_tokens + report.output_tokens) / report.num_steps,
        answer_tokens=report.output_tokens / report.num_finished,
        requests_per_s=report.requests_per_s,
    )


def _requests(fault: Fault, seed: int, minutes: float) -> list[SimRequest]:
    rng = Random(f"incident:{seed}")
    requests: list[SimRequest] = []
    now = 0.0
    while now < 60 * minutes:
        now += rng.expovariate(RATE * (8 if fault == "overload" else 1))
        is_long = rng.random() < 0.05
        own = rng.randint(QUESTION // 2, 2 * QUESTION)
        answer = rng.randint(ANSWER // 2, 2 * ANSWER)
        prompt_len = LONG_PROMPT if is_long else SYSTEM + own
        output_len = MAX_TOKENS if fault == "missing_stop" else answer
        prefix_id = -1 if is_long or fault == "volatile_prompt" else 0
        requests.append(SimRequest(len(requests), now, prompt_len, output_len, prefix_id, SYSTEM))
    return requests
