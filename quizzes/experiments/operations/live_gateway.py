"""A real gateway over two real servers on this machine: where conversations go, and what that saves."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Literal

from quizzes.experiments import Context, Inconclusive, Result, arg, experiment

NAMES = ("a", "b")


@experiment("E47", "E49", seconds=60)
def live_gateway(
    ctx: Context,
    policy: Literal["round-robin", "least-loaded", "prefix-affinity"] = "prefix-affinity",
    conversations: int = arg(3, 1, 8),
    turns: int = arg(4, 1, 8),
    tokens_per_turn: int = arg(64, 16, 128),
) -> Result:
    """Send conversations through `prep gateway` to two servers of `prep serve shop`, one request after the other.

    Every turn repeats its conversation and adds `tokens_per_turn` tokens; conversations take turns and share nothing.
    Blocks hold 16 tokens. The first turns go to the servers in turn.

    Returns: By the usage in the answers, /metrics of both servers, and the gateway's own state.
        answered [requests]
        prompt, cached [tokens]: Over all answers.
        hits, queries [tokens]: vllm:prefix_cache_hits and _queries, both servers.
        hit_rate [share]
        at_home [conversations]: All turns of it went to one server.
        requests_a, requests_b [requests]: By the gateway's count.
        explained [requests]: Requests whose decision the gateway still explains, with the server that answered.
    """
    own = [
        [300 + (37 * number + at) % 1500 for at in range(turns * tokens_per_turn)]
        for number in range(conversations)
    ]
    went: list[set[str]] = [set() for _ in own]

    async def work(client: Any) -> dict[str, int]:
        told = {"answered": 0, "prompt": 0, "cached": 0, "explained": 0}
        for turn in range(turns):
            for number, tokens in enumerate(own):
                body = {"prompt": tokens[: (turn + 1) * tokens_per_turn], "max_tokens": 1, "temperature": 0}
                name = f"{number}-{turn}"
                answer = await client.post("/v1/completions", json=body, headers={"X-Request-Id": name})
                usage = answer.raise_for_status().json()["usage"]
                home = answer.headers["x-prep-backend"]
                went[number].add(home)
                decision = (await client.get(f"/gateway/decisions/{name}")).json()
                told["answered"] += 1
                told["prompt"] += usage["prompt_tokens"]
                told["cached"] += usage["prompt_tokens_details"]["cached_tokens"]
                told["explained"] += f"{name} went to {home}: " in decision["sentence"]
        state = (await client.get("/gateway/state")).json()
        return told | {f"requests_{backend['name']}": backend["requests"] for backend in state["backends"]}

    told, metrics = asyncio.run(_run(policy, work))
    return Result(
        **told,
        hits=metrics["prefix_cache_hits_total"],
        queries=metrics["prefix_cache_queries_total"],
        hit_rate=told["cached"] / told["prompt"],
        at_home=sum(len(homes) == 1 for homes in went),
    )


async def _run(policy: str, work: Any) -> tuple[dict[str, int], dict[str, Any]]:
    """Start two servers and a gateway, hand `work` a client of it, and return its result and the servers' counters."""
    try:
        import httpx

        from engine.gateway import run as gateway
        from engine.gateway.config import GatewaySettings
        from engine.server.listen import listen
        from engine.server.run import ServerArgs, running
    except ImportError as error:
        raise Inconclusive(f"the gateway needs {error.name}: pip install -e '.[serve]'") from None
    from engine.async_llm import AsyncLLM
    from engine.config import EngineArgs
    from quizzes.experiments.operations.server import sums

    settings = ServerArgs(stats_interval_s=0, enable_prompt_tokens_details=True)
    async with AsyncExitStack() as stack:
        backends = []
        for name in NAMES:
            listener = stack.enter_context(listen("127.0.0.1", 0))
            llm = stack.enter_context(
                AsyncLLM(EngineArgs(model="shop", block_size=16, num_gpu_blocks_override=512))
            )
            await stack.enter_async_context(running("shop", llm, listener, settings))
            backends.append({"name": name, "url": f"http://127.0.0.1:{listener.getsockname()[1]}"})
        listener = stack.enter_context(listen("127.0.0.1", 0))
        wanted = GatewaySettings.model_validate({"policy": policy, "backends": backends})
        await stack.enter_async_context(gateway.running(wanted, listener))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        told = await work(client)
        scrapes = [sums((await client.get(f"{backend['url']}/metrics")).text) for backend in backends]
    return told, {
        name: sum(scrape[name] for scrape in scrapes)
        for name in scrapes[0]
        if name.startswith("prefix_cache")
    }
