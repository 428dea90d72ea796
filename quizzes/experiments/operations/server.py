"""A real server over HTTP on this machine: what its /metrics say, and what its clients were told."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from quizzes.experiments import Context, Inconclusive, Result, arg, experiment

T = TypeVar("T")
BURSTS = 5
"""A burst is sent this often at most, until all its refusals came before its first answer."""


@experiment("E51", seconds=60)
def live_server(
    ctx: Context,
    requests: int = arg(8, 2, 32),
    shared: int = arg(50, 0, 256),
    own: int = arg(20, 1, 100),
    output: int = arg(6, 1, 40),
) -> Result:
    """Send requests to a real server, and compare the usage in its answers with its /metrics.

    The server is that of `prep serve shop`, its engine in a process of its own. The first request runs alone, the
    others come together afterwards. Every prompt begins with the same `shared` tokens and goes on with `own` others.
    Blocks hold 16 tokens; the cache is empty before.

    Returns: Sums over all requests, as their answers say (usage) and as /metrics says.
        answered, succeeded [requests]: Answers with status 200; vllm:request_success_total.
        usage_prompt, metric_prompt [tokens]
        usage_output, metric_output [tokens]
        usage_cached, metric_hits, metric_queries [tokens]: The last two are vllm:prefix_cache_hits and _queries.
        ttft_count, itl_count, tpot_count, e2e_count: Values in the histograms.
        running_after [requests]; kv_usage_after [share]
    """
    prompts = [
        [*(300 + at % 1000 for at in range(shared)), *(400 + (37 * number + at) % 1500 for at in range(own))]
        for number in range(requests)
    ]

    async def send(client: Any, prompt: list[int]) -> dict[str, Any]:
        body = {"prompt": prompt, "max_tokens": output, "ignore_eos": True, "temperature": 0}
        response = await client.post("/v1/completions", json=body)
        response.raise_for_status()
        return dict(response.json()["usage"])

    async def work(client: Any) -> list[dict[str, Any]]:
        first = await send(client, prompts[0])
        return [first, *await asyncio.gather(*(send(client, prompt) for prompt in prompts[1:]))]

    usage, metrics = _serve(
        {"num_gpu_blocks_override": 1024, "max_num_seqs": 32}, {"enable_prompt_tokens_details": True}, work
    )
    return Result(
        answered=len(usage),
        succeeded=metrics["request_success_total"],
        usage_prompt=sum(answer["prompt_tokens"] for answer in usage),
        metric_prompt=metrics["prompt_tokens_total"],
        usage_output=sum(answer["completion_tokens"] for answer in usage),
        metric_output=metrics["generation_tokens_total"],
        usage_cached=sum(answer["prompt_tokens_details"]["cached_tokens"] for answer in usage),
        metric_hits=metrics["prefix_cache_hits_total"],
        metric_queries=metrics["prefix_cache_queries_total"],
        ttft_count=metrics["time_to_first_token_seconds_count"],
        itl_count=metrics["inter_token_latency_seconds_count"],
        tpot_count=metrics["request_time_per_output_token_seconds_count"],
        e2e_count=metrics["e2e_request_latency_seconds_count"],
        running_after=metrics["num_requests_running"],
        kv_usage_after=metrics["kv_cache_usage_perc"],
    )


@experiment("E53", seconds=60)
def live_overload(
    ctx: Context,
    requests: int = arg(10, 1, 32),
    running: int = arg(4, 1, 8),
    queued: int = arg(3, 0, 16),
    blocks: int = arg(24, 17, 512),
    output: int = arg(160, 100, 200),
) -> Result:
    """Send a burst to a real server whose queue and KV cache are too small for it; then ask the same one by one.

    The server is that of `prep serve shop` with max_num_seqs `running`, max_num_queued_reqs `queued`, and `blocks`
    blocks of 16 tokens. Every prompt has 32 tokens, every answer `output`; greedy. A prompt that is longer than
    max_model_len (256 tokens) comes first.

    Returns:
        answered, refused [requests]: Answers with status 200, and with 429 (vLLM answers 503).
        refused_with_retry_after [requests]
        short [answers]: Answers with fewer tokens than asked for.
        wrong [answers]: Answers with other tokens than the same request gets alone.
        preempted: Whether vllm:num_preemptions grew during the burst. How often depends on arrivals.
        too_long_status [status]
        health_after [status]; kv_usage_after [share]
    """
    prompts = [[*range(300 + 40 * number, 332 + 40 * number)] for number in range(requests)]

    async def work(client: Any) -> dict[str, Any]:
        async def ask(prompt: list[int]) -> Any:
            body = {"prompt": prompt, "max_tokens": output, "temperature": 0, "ignore_eos": True}
            return await client.post("/v1/completions", json=body)

        too_long = await ask([300] * 300)
        responses, preempted = await _burst(client, ask, prompts)
        alone = [await ask(prompt) for prompt in prompts]
        return {
            "too_long": too_long.status_code,
            "burst": responses,
            "preempted": preempted,
            "alone": [response.json()["choices"][0]["text"] for response in alone],
            "health": (await client.get("/health")).status_code,
        }

    seen, metrics = _serve(
        {"num_gpu_blocks_override": blocks, "max_num_seqs": running, "max_model_len": 256},
        {"max_num_queued_reqs": queued},
        work,
    )
    answered = [
        (response.json(), alone)
        for response, alone in zip(seen["burst"], seen["alone"], strict=True)
        if response.status_code == 200
    ]
    refused = [response for response in seen["burst"] if response.status_code == 429]
    return Result(
        answered=len(answered),
        refused=len(refused),
        refused_with_retry_after=sum("retry-after" in response.headers for response in refused),
        short=sum(body["usage"]["completion_tokens"] < output for body, _ in answered),
        wrong=sum(body["choices"][0]["text"] != alone for body, alone in answered),
        preempted=seen["preempted"],
        too_long_status=seen["too_long"],
        health_after=seen["health"],
        kv_usage_after=metrics["kv_cache_usage_perc"],
    )


async def _burst(
    client: Any, ask: Callable[[list[int]], Coroutine[Any, Any, Any]], prompts: list[list[int]]
) -> tuple[list[Any], bool]:
    """Ask all prompts at once. Return the responses, and whether requests were preempted meanwhile.

    On a busy machine requests come one by one and find free places: then the burst is repeated.
    """

    async def ask_in(prompt: list[int], order: list[int]) -> Any:
        response = await ask(prompt)
        order.append(response.status_code)
        return response

    async def preemptions() -> int:
        return int(sums((await client.get("/metrics")).text)["num_preemptions_total"])

    for _ in range(BURSTS):
        order: list[int] = []
        before = await preemptions()
        responses = await asyncio.gather(*(ask_in(prompt, order) for prompt in prompts))
        if order == sorted(order, reverse=True):
            return responses, await preemptions() > before
    raise Inconclusive(
        f"the last of {len(prompts)} requests came after the first answer: the machine is busy or answers are short"
    )


def _serve(
    engine: dict[str, Any], settings: dict[str, Any], work: Callable[[Any], Coroutine[Any, Any, T]]
) -> tuple[T, dict[str, Any]]:
    """Start a server, hand `work` a client of it, and return its result and the sums of /metrics after it."""
    try:
        import httpx
        import prometheus_client as _  # noqa: F401

        from engine.server.listen import listen
        from engine.server.run import ServerArgs, running
    except ImportError as error:
        raise Inconclusive(f"the server needs {error.name}: pip install -e '.[serve]'") from None
    from engine.async_llm import AsyncLLM
    from engine.config import EngineArgs

    async def run(llm: AsyncLLM, listener: Any) -> tuple[T, str]:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with (
            running("shop", llm, listener, ServerArgs(stats_interval_s=0, **settings)),
            httpx.AsyncClient(base_url=url, timeout=60) as client,
        ):
            return await work(client), (await client.get("/metrics")).text

    args = EngineArgs(model="shop", block_size=16, **engine)
    with listen("127.0.0.1", 0) as listener, AsyncLLM(args, own_process=True) as llm:
        result, text = asyncio.run(run(llm, listener))
    return result, sums(text)


def sums(text: str) -> dict[str, Any]:
    """Return the values of /metrics summed over labels, without the prefix `vllm:`."""
    from prometheus_client.parser import text_string_to_metric_families as families

    sums: dict[str, Any] = {}
    for sample in (sample for family in families(text) for sample in family.samples):
        name = sample.name.removeprefix("vllm:")
        sums[name] = sums.get(name, 0) + sample.value
    return {name: int(value) if value == int(value) else value for name, value in sums.items()}
