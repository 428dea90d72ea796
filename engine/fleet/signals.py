"""The autoscaler's signal, read from the gateway and from the replicas' /metrics. Names: SIGNALS of the simulator."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import httpx

from engine.gateway.backend import Backend
from engine.gateway.proxy import Gateway
from engine.server.metrics import START
from engine.server.scrape import Scrape
from engine.sim.autoscaler import AutoscalerConfig

METRICS = {"queue": "num_requests_waiting", "kv": "kv_cache_usage_perc"}


async def read_signal(
    config: AutoscalerConfig, gateway: Gateway, backends: Sequence[Backend], arrivals: int
) -> float:
    """Return the signal per replica. Requests that the gateway holds count as waiting.

    arrivals: requests since the last look, one `config.interval` ago.
    """
    number = max(1, len(backends))
    if config.signal == "rate":
        return arrivals / config.interval / number
    if config.signal == "load":
        return (sum(backend.load for backend in backends) + gateway.num_held) / number
    values = await asyncio.gather(
        *(_scrape(gateway, backend, METRICS[config.signal]) for backend in backends)
    )
    return (sum(values) + (gateway.num_held if config.signal == "queue" else 0)) / number


async def read_stages(gateway: Gateway, url: str) -> dict[str, float]:
    """Return the seconds of a server's start by stage; empty if it does not tell."""
    try:
        text = (await gateway.client.get(f"{url}/metrics", timeout=2)).raise_for_status().text
    except httpx.HTTPError:
        return {}
    samples = re.findall(rf'^{START}{{stage="([^"]+)"}} (\S+)$', text, re.MULTILINE)
    return {stage: float(seconds) for stage, seconds in samples}


async def _scrape(gateway: Gateway, backend: Backend, name: str) -> float:
    """Return a gauge of a replica; 0 if it does not answer, which the health check notices."""
    try:
        response = await gateway.client.get(f"{backend.settings.url}/metrics", timeout=2)
        return Scrape.of(response.raise_for_status().text).values.get(name, 0.0)
    except (httpx.HTTPError, ValueError):
        return 0.0
