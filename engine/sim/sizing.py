"""Capacity by arithmetic: number of GPUs, tokens within an SLO, swap or recompute.

Whiteboard formulas over the shapes and datasheets of the simulator, so that each can be checked
against the other. Each result keeps its intermediate figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.config import ConfigError
from engine.sim.cost import CostModel, Rates, StepLoad, pairs_of
from engine.sim.hardware import Link
from engine.sim.memory import Deployment, plan_memory

MAX_RATE = 1e9
"""Requests per second; more is a typing error."""
ASSUMED_PRICES = {
    "a10g": 1.0,
    "l4": 0.7,
    "a100-40": 1.5,
    "a100-80": 2.0,
    "h100": 3.0,
    "h200": 4.0,
    "b200": 6.0,
    "cpu": 0.1,
}
"""Dollars per GPU and hour: assumptions, not quoted prices; replace them with those of your contract."""


@dataclass(frozen=True)
class Sizing:
    """Replicas for a rate of requests. A replica is `gpus_per_replica` GPUs."""

    rate: float
    prompt: int
    output: int
    gpus_per_replica: int
    prefill_seconds: float  # prefill time of one prompt on an idle replica
    prefill_replicas: float  # replicas that the prompts keep busy
    tpot: float  # step time of a decode batch of `batch` requests
    batch: int  # maximum concurrent decodes of one replica within memory and the TPOT limit
    concurrent_decodes: float  # concurrent decodes by Little's law: rate x output x TPOT
    decode_replicas: float
    kv_bytes_at_once: float  # KV bytes of all concurrent decodes, halfway through their outputs
    kv_bytes_per_s: float  # KV bytes per second from prefill to decode, if they are separate
    gpus: int

    @property
    def replicas(self) -> float:
        return self.prefill_replicas + self.decode_replicas


def size(
    deployment: Deployment,
    *,
    rate: float,
    prompt: int,
    output: int,
    tpot_limit: float | None = None,
    utilisation: float = 0.7,
    rates: Rates | None = None,
) -> Sizing:
    """Return the GPUs for `rate` requests per second at `utilisation` of the replicas' capacity.

    The capacity above the utilisation absorbs queueing: `prep sim fleet` shows the effect.
    """
    if not (0 < rate <= MAX_RATE and prompt >= 1 and output >= 1 and 0 < utilisation <= 1):
        raise ConfigError(
            f"rate, prompt and output must be positive, rate at most {MAX_RATE:.0e}, utilisation a share in (0, 1]"
        )
    cost = CostModel(deployment, rates)
    prefill = cost.seconds(StepLoad(1, prompt, 1, 0, pairs_of(0, prompt, cost.window), prompt))
    held = deployment.model.kv_tokens_held(prompt + output // 2)
    batch = max(1, min(deployment.max_num_seqs, int(plan_memory(deployment).num_tokens // held)))
    batch = _largest_batch(cost, batch, held, tpot_limit)
    tpot = cost.seconds(StepLoad(batch, batch, batch, batch * held))
    concurrent = rate * output * tpot
    prefill_replicas = rate * prefill / utilisation
    decode_replicas = concurrent / batch / utilisation
    return Sizing(
        rate=rate,
        prompt=prompt,
        output=output,
        gpus_per_replica=deployment.num_devices,
        prefill_seconds=prefill,
        prefill_replicas=prefill_replicas,
        tpot=tpot,
        batch=batch,
        concurrent_decodes=concurrent,
        decode_replicas=decode_replicas,
        kv_bytes_at_once=concurrent * held * deployment.kv_bytes_per_token,
        kv_bytes_per_s=rate * prompt * deployment.kv_bytes_per_token,
        gpus=math.ceil(prefill_replicas + decode_replicas) * deployment.num_devices,
    )


def _largest_batch(cost: CostModel, most: int, held: int, tpot_limit: float | None) -> int:
    if tpot_limit is None:
        return most

    def seconds(rows: int) -> float:
        return cost.seconds(StepLoad(rows, rows, rows, rows * held))

    fitting = [rows for rows in range(1, most + 1) if seconds(rows) <= tpot_limit]
    if not fitting:
        raise ConfigError(
            f"a TPOT of {1000 * tpot_limit:.1f} ms cannot be met: one request alone takes {1000 * seconds(1):.1f} ms "
            "per token on these devices; use a smaller model or dtype, more tp, or faster memory"
        )
    return max(fitting)


@dataclass(frozen=True)
class SLOBudget:
    """Number of tokens within an end-to-end limit."""

    ttft: float
    tpot: float
    limit: float
    hops: float  # seconds outside of the engine
    tokens: int  # output tokens that fit, including the first; 0: none


def slo_budget(*, ttft: float, tpot: float, limit: float, hops: float = 0.0) -> SLOBudget:
    """Solve hops + TTFT + (n - 1) x TPOT = limit for n."""
    if min(ttft, limit, hops) < 0 or tpot <= 0:
        raise ConfigError("times must not be negative, and TPOT must be positive")
    left = limit - hops - ttft
    tokens = 0 if left < 0 else 1 + math.floor(left / tpot + 1e-9)
    return SLOBudget(ttft, tpot, limit, hops, tokens)


def latency_of(num_tokens: int, *, ttft: float, tpot: float, hops: float = 0.0) -> float:
    """Return the seconds until the last of `num_tokens` output tokens."""
    return hops + ttft + (num_tokens - 1) * tpot


@dataclass(frozen=True)
class SwapOrRecompute:
    """Two ways to resume a preempted request."""

    num_tokens: int
    swap_seconds: float  # copy out and back over the link, for the bytes of one device
    recompute_seconds: float
    break_even: int | None  # tokens from which swapping stays cheaper; None: not within `longest`

    @property
    def cheaper(self) -> str:
        return "swap" if self.swap_seconds < self.recompute_seconds else "recompute"


def swap_or_recompute(
    deployment: Deployment,
    num_tokens: int,
    *,
    link: Link | None = None,
    rates: Rates | None = None,
    longest: int = 131_072,
) -> SwapOrRecompute:
    """Compare. Copy time is linear in tokens; recomputation in a separate step has a fixed cost and grows faster."""
    if num_tokens < 1:
        raise ConfigError(f"num_tokens must be at least 1, got {num_tokens}")
    cost, link = CostModel(deployment, rates), link or deployment.hardware.host_link

    def swap(tokens: int) -> float:
        return 2 * link.seconds(tokens * deployment.kv_bytes_per_token_per_device)

    def recompute(tokens: int) -> float:
        return cost.seconds(StepLoad(1, tokens, 1, 0, pairs_of(0, tokens, cost.window), tokens))

    dearer = [tokens for tokens in range(16, longest + 1, 16) if swap(tokens) >= recompute(tokens)]
    stays = dearer[-1] + 16 if dearer else 16
    break_even = stays if stays <= longest else None
    return SwapOrRecompute(num_tokens, swap(num_tokens), recompute(num_tokens), break_even)
