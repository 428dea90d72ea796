"""The scenes of the recorded runs: engine settings, arrivals and aborts, on the shipped model.

Steps are deterministic, so a recipe always makes the same decisions; only the clock differs (`record.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from app.debugger.live.settings import Arrival
from engine.zoo.shop import Shop, open_shop

CUSTOMERS = ("ana", "ben", "cleo", "dan", "eve", "finn", "gus", "hana", "ivo", "june", "kim", "leo")


@dataclass(frozen=True)
class Scene:
    """One run. settings: keyword arguments of EngineArgs."""

    settings: dict[str, Any]
    arrivals: list[Arrival]
    aborts: dict[str, int] = field(default_factory=dict)
    """Request id -> the step before which it is aborted."""
    adapters: tuple[str, ...] = ()


def ask(
    shop: Shop, question: int, *, max_tokens: int = 24, exactly: bool = True, **options: Any
) -> dict[str, Any]:
    """A customer's question to a shop. exactly: the answer has exactly max_tokens tokens."""
    messages = [
        {"role": "system", "content": shop.system},
        {"role": "user", "content": shop.questions[question % len(shop.questions)]},
    ]
    return {"messages": messages, "max_tokens": max_tokens, "ignore_eos": exactly, **options}


def first_steps() -> Scene:
    """One request alone."""
    shop = open_shop(1, titles=2)
    return Scene(_engine(num_blocks=25, tokens=64, seqs=4), [Arrival(0, "ana", ask(shop, 0, max_tokens=24))])


def continuous_batching() -> Scene:
    """Customers of one shop, whose notes are computed once, join and leave."""
    shop = open_shop(2, titles=2)
    lengths = (30, 8, 20, 12, 26, 6, 18, 10)
    arrivals = [
        Arrival(3 * n, name, ask(shop, n, max_tokens=length))
        for n, (name, length) in enumerate(zip(CUSTOMERS, lengths, strict=False))
    ]
    return Scene(_engine(num_blocks=96, tokens=128, seqs=4), arrivals)


def chunked_prefill() -> Scene:
    """A long prompt arrives while three requests decode."""
    shop = open_shop(3, titles=2)
    arrivals = [Arrival(0, name, ask(shop, n, max_tokens=36)) for n, name in enumerate(CUSTOMERS[:3])]
    arrivals.append(Arrival(12, "catalogue", ask(open_shop(4, titles=10), 0, max_tokens=12)))
    return Scene(_engine(num_blocks=160, tokens=64, seqs=8), arrivals)


def prefix_cache() -> Scene:
    """Four agents with one system prompt; each has two turns, the second one begins with the first."""
    shop = open_shop(5, titles=3)
    arrivals = []
    for turn in range(2):
        for n in range(4):
            wish = ask(shop, n, max_tokens=12)
            if turn:
                before = wish["messages"][-1]
                answer = {"role": "assistant", "content": "Let me look that up in our notes for you."}
                after = {"role": "user", "content": shop.questions[n + 2]}
                wish["messages"] = [wish["messages"][0], before, answer, after]
            arrivals.append(Arrival(30 * turn + 2 * n, f"agent-{n + 1}-turn-{turn + 1}", wish))
    return Scene(_engine(num_blocks=128, tokens=128, seqs=8), arrivals)


def eviction() -> Scene:
    """Prompts of several shops, a cache for three: one returns before its blocks are evicted, another after."""
    arrivals = []
    for n, seed in enumerate((11, 12, 13, 11, 14, 15, 12)):
        arrivals.append(
            Arrival(20 * n, f"shop-{seed}-visit-{n + 1}", ask(open_shop(seed, titles=2), n, max_tokens=12))
        )
    return Scene(_engine(num_blocks=36, tokens=128, seqs=4), arrivals)


def memory_pressure() -> Scene:
    """Two shops, five requests with long answers, and too few blocks for all of them."""
    shops = [open_shop(seed, titles=2) for seed in (1, 2)]
    arrivals = [
        Arrival(4 * n, name, ask(shops[n % 2], n, max_tokens=44)) for n, name in enumerate(CUSTOMERS[:5])
    ]
    return Scene(_engine(num_blocks=36, tokens=96, seqs=8), arrivals)


def full_cache() -> Scene:
    """A new request arrives while three others hold nearly all blocks, and waits for one of them to end."""
    shops = [open_shop(51 + n, titles=2) for n in range(4)]
    lengths = (10, 40, 40, 20)
    arrivals = [
        Arrival(2 * n, name, ask(shops[n], n, max_tokens=length))
        for n, (name, length) in enumerate(zip(CUSTOMERS, lengths, strict=False))
    ]
    return Scene(_engine(num_blocks=43, tokens=256, seqs=8), arrivals)


def recompute() -> Scene:
    """Without a prefix cache, a preempted request recomputes all of its tokens."""
    shop = open_shop(7, titles=2)
    arrivals = [Arrival(4 * n, name, ask(shop, n, max_tokens=44)) for n, name in enumerate(CUSTOMERS[:4])]
    return Scene({**_engine(num_blocks=53, tokens=96, seqs=8), "enable_prefix_caching": False}, arrivals)


def swap() -> Scene:
    """The same requests and blocks, but preempted blocks are copied to host memory."""
    scene = recompute()
    return Scene({**scene.settings, "preemption_mode": "swap", "swap_space": 0.05}, scene.arrivals)


def priorities() -> Scene:
    """The least important request is preempted, not the newest; 0 is the most important priority."""
    shops = [open_shop(seed, titles=2) for seed in (21, 22, 23, 24)]
    importance = {"ana": 5, "ben": 9, "cleo": 5, "urgent": 0}
    arrivals = [
        Arrival(3 * n, name, ask(shops[n], n, max_tokens=48, priority=priority))
        for n, (name, priority) in enumerate(importance.items())
    ]
    return Scene({**_engine(num_blocks=53, tokens=96, seqs=8), "scheduling_policy": "priority"}, arrivals)


def burst() -> Scene:
    """Twelve requests arrive at once, four run at a time, and one prompt uses up the budget."""
    shops = [open_shop(30 + n, titles=2) for n in range(4)]
    arrivals = [
        Arrival(2 + n // 8, name, ask(shops[n % 4], n, max_tokens=10 + 2 * (n % 5)))
        for n, name in enumerate(CUSTOMERS)
    ]
    return Scene(_engine(num_blocks=128, tokens=96, seqs=4), arrivals)


def lora() -> Scene:
    """Three adapters and one slot: a request whose adapter is not on the device waits for the slot."""
    shop = open_shop(41, titles=2)
    adapters = ("shop-lora-recommend", "shop-lora-support", "shop-lora-ja")
    arrivals = []
    for n, name in enumerate(CUSTOMERS[:6]):
        lora = (None, *adapters)[n % 4]
        options: dict[str, Any] = {} if lora is None else {"lora": lora}
        arrivals.append(
            Arrival(2 * n, f"{name}-{(lora or 'base').removeprefix('shop-lora-')}", ask(shop, n, **options))
        )
    settings = {**_engine(num_blocks=128, tokens=128, seqs=8), "enable_lora": True, "max_loras": 1}
    return Scene(settings | {"max_cpu_loras": 3}, arrivals, adapters=adapters)


def speculation() -> Scene:
    """A small model drafts four tokens per step; the large model accepts those it would have generated."""
    shop = open_shop(51, titles=2)
    arrivals = [Arrival(4 * n, name, ask(shop, n, max_tokens=40)) for n, name in enumerate(CUSTOMERS[:4])]
    settings = _engine(num_blocks=96, tokens=128, seqs=4)
    settings["speculative_config"] = {"model": "shop-draft", "num_speculative_tokens": 4}
    return Scene(settings, arrivals)


def aborts() -> Scene:
    """Three aborts: a waiting request, one during its prompt, one during its answer."""
    shops = [open_shop(seed, titles=3) for seed in (61, 62, 63, 64)]
    arrivals = [Arrival(n, name, ask(shops[n], n, max_tokens=30)) for n, name in enumerate(CUSTOMERS[:4])]
    settings = _engine(num_blocks=60, tokens=64, seqs=2)
    return Scene(settings, arrivals, aborts={"ben": 6, "dan": 15, "ana": 20})


def _engine(num_blocks: int, tokens: int, seqs: int) -> dict[str, Any]:
    """Engine settings; num_blocks includes the null block."""
    return {
        "num_gpu_blocks_override": num_blocks,
        "block_size": 16,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
    }


_IN_ORDER = (
    first_steps,
    continuous_batching,
    chunked_prefill,
    prefix_cache,
    eviction,
    full_cache,
    memory_pressure,
    recompute,
    swap,
    priorities,
    burst,
    lora,
    speculation,
    aborts,
)
SCENES: dict[str, Callable[[], Scene]] = {scene.__name__.replace("_", "-"): scene for scene in _IN_ORDER}
"""The scenes by run id, in recommended order."""
