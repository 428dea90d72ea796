"""Workloads for a live engine: five kinds of traffic, reproducible by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from app.debugger.live.settings import Arrival
from engine.zoo.shop import Shop, open_shop


class Traffic(NamedTuple):
    """Parameters of all kinds of traffic."""

    num_requests: int
    answer_tokens: int
    full_length: bool
    """Answers have the maximum length, so that memory runs out."""
    seed: int
    priorities: bool
    """Every third request has priority 0, which is more important than the others' 1."""
    adapters: tuple[str, ...]


def _chat(traffic: Traffic, rng: Random) -> list[Arrival]:
    """Customers of three shops, one every other step; those of one shop share a prefix."""
    shops = [open_shop(traffic.seed * 10 + n, titles=3) for n in range(3)]
    return [
        _ask(2 * n, f"chat-{n}", shop := rng.choice(shops), [rng.choice(shop.questions)])
        for n in range(traffic.num_requests)
    ]


def _long_documents(traffic: Traffic, rng: Random) -> list[Arrival]:
    """Every prompt is another shop's long catalogue: no shared prefixes, and prefill takes several steps."""
    arrivals = []
    for n in range(traffic.num_requests):
        shop = open_shop(traffic.seed * 100 + n, titles=rng.randint(5, 8))
        arrivals.append(_ask(4 * n, f"document-{n}", shop, [rng.choice(shop.questions)]))
    return arrivals


def _agents(traffic: Traffic, rng: Random) -> list[Arrival]:
    """Agents with one system prompt and a growing history: every turn continues the previous one."""
    shop = open_shop(traffic.seed, titles=3)
    num_agents = max(1, min(4, traffic.num_requests))
    histories: list[list[str]] = [[] for _ in range(num_agents)]
    arrivals = []
    for n in range(traffic.num_requests):
        agent, turn = n % num_agents, n // num_agents
        histories[agent].append(rng.choice(shop.questions))
        arrivals.append(_ask(24 * turn + agent, f"agent-{agent}-turn-{turn}", shop, histories[agent]))
    return arrivals


def _bursts(traffic: Traffic, rng: Random) -> list[Arrival]:
    """Six requests at once after a pause."""
    shops = [open_shop(traffic.seed * 10 + n, titles=3) for n in range(4)]
    return [
        _ask(
            30 * (n // 6), f"burst-{n // 6}-{n % 6}", shop := rng.choice(shops), [rng.choice(shop.questions)]
        )
        for n in range(traffic.num_requests)
    ]


KINDS: dict[str, Callable[[Traffic, Random], list[Arrival]]] = {
    "chat": _chat,
    "long documents": _long_documents,
    "agents": _agents,
    "bursts": _bursts,
}
CUSTOM = "custom prompts"


def make(kind: str, traffic: Traffic, prompts: Sequence[str] = ()) -> list[Arrival]:
    """The requests in order of arrival. prompts: those of the kind `CUSTOM`, one request each."""
    if kind == CUSTOM:
        arrivals = [
            Arrival(2 * n, f"prompt-{n}", {"messages": [{"role": "user", "content": prompt}]})
            for n, prompt in enumerate(prompts)
        ]
    else:
        arrivals = KINDS[kind](traffic, Random(f"{kind}/{traffic.seed}"))
    return [_with_options(arrival, n, traffic) for n, arrival in enumerate(arrivals)]


def describe(kind: str) -> str:
    """A sentence about a kind of traffic."""
    return "Your prompts, one per line." if kind == CUSTOM else (KINDS[kind].__doc__ or "")


def _with_options(arrival: Arrival, n: int, traffic: Traffic) -> Arrival:
    options: dict[str, Any] = {
        "max_tokens": traffic.answer_tokens,
        "ignore_eos": traffic.full_length,
        "seed": traffic.seed + n,
    }
    if traffic.priorities:
        options["priority"] = 0 if n % 3 == 2 else 1
    adapter = [None, *traffic.adapters][n % (1 + len(traffic.adapters))]
    if adapter is not None:
        options["lora"] = adapter
    return arrival._replace(wish={**arrival.wish, **options})


def _ask(step: int, request_id: str, shop: Shop, questions: Sequence[str]) -> Arrival:
    """A conversation with a shop: earlier questions with short answers, then a new question."""
    messages = [{"role": "system", "content": shop.system}]
    for question in questions[:-1]:
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": "Let me look that up in our notes for you."},
        ]
    messages.append({"role": "user", "content": questions[-1]})
    return Arrival(step, request_id, {"messages": messages})
