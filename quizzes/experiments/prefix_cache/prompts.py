"""Prefix hits by the way in which prompts are written."""

import json
import os
import re
from collections.abc import Sequence
from random import Random
from typing import Any, Literal

from engine.sim.run import make_engine
from engine.sim.workload import SimRequest
from quizzes.experiments import Ask, Context, Fresh, Result, arg, deploy, experiment


def canonical(parts: dict[str, Any]) -> bytes:
    """Return the prompt with stable parts first, in one spelling, and volatile parts last.

    Instructions lose trailing blanks and doubled spaces; tools are sorted by name and written as JSON with sorted
    keys; date, request id and question, which change with every request, come last.
    """
    text = re.sub(r"[ \t]+", " ", parts["instructions"].replace("\r\n", "\n")).strip()
    tools = json.dumps(
        sorted(parts["tools"], key=lambda tool: tool["name"]), sort_keys=True, ensure_ascii=False
    )
    volatile = f"date: {parts['date']}\nrequest: {parts['request']}\nquestion: {parts['question']}"
    return f"{text}\n{tools}\n{volatile}".encode()


def naive_text(parts: dict[str, Any], stamped: bool = True) -> bytes:
    """Return the prompt with order and white space unchanged; stamped: with request id and date first."""
    stamp = f"request: {parts['request']}\ndate: {parts['date']}\n" if stamped else ""
    tools = json.dumps(parts["tools"], ensure_ascii=False)
    return f"{stamp}{parts['instructions']}\n{tools}\n{parts['question']}".encode()


INSTRUCTIONS = (
    "You answer for a bookshop. Say only what the catalogue rows say. Give prices with tax. "
    "Offer one title at a time. If a title is sold out, name the date of the next delivery. "
)
TOOLS: list[dict[str, Any]] = [
    {"name": "search_titles", "arguments": {"text": "string", "limit": "integer"}},
    {"name": "read_stock", "arguments": {"title": "string", "shop": "string"}},
    {"name": "order_status", "arguments": {"order": "string", "mail": "string"}},
]


@experiment("E48", "E08")
def canonical_prompt(
    ctx: Context,
    requests: int = arg(12, 2, 40),
    block_size: int = arg(16, 1, 128),
    stamped: bool = True,
    seed: int = arg(0, 0, 10_000),
) -> Result:
    """Compare prefix hits of prompts in many spellings before and after a canonicaliser.

    Clients send the same instructions and tools with other white space, order and date each time. naive: request id
    and date at the start (stamped) or absent, the rest unchanged. canonical: stable parts first, in one spelling.

    Returns: One token per byte, so that the result depends on no tokenizer.
        stable_bytes [tokens]: Length of what all canonical prompts start with.
        naive_hit_rate, canonical_hit_rate [share]
        naive_hit_tokens [tokens]: All requests but the first.
        canonical_hit_tokens [tokens]: All requests but the first.
        spellings [spellings]: Different heads of naive prompts, with date and request id left out.
        canonical_spellings [spellings]
    """
    rng = Random(seed)
    sent = [_from_a_client(rng, number) for number in range(requests)]
    naive, canonic = [naive_text(parts, stamped) for parts in sent], [canonical(parts) for parts in sent]
    hits = [_hits(ctx, prompts, block_size, traced=prompts is canonic) for prompts in (naive, canonic)]
    return Result(
        stable_bytes=len(os.path.commonprefix(canonic)),
        naive_hit_rate=sum(hits[0]) / sum(map(len, naive)),
        canonical_hit_rate=sum(hits[1]) / sum(map(len, canonic)),
        naive_hit_tokens=sum(hits[0]),
        canonical_hit_tokens=sum(hits[1]),
        spellings=len({naive_text(parts, False).rsplit(b"\n", 1)[0] for parts in sent}),
        canonical_spellings=len({prompt.split(b"\ndate:")[0] for prompt in canonic}),
    )


def _from_a_client(rng: Random, number: int) -> dict[str, Any]:
    tools = [dict(reversed(tool.items())) if rng.random() < 0.5 else dict(tool) for tool in TOOLS]
    rng.shuffle(tools)
    blank = rng.choice([" ", "  ", " \t"])
    return {
        "instructions": INSTRUCTIONS.replace(". ", f".{blank}") + rng.choice(["", " ", "\n"]),
        "tools": tools,
        "date": f"2026-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}T{rng.randrange(24):02d}:{number % 60:02d}",
        "request": f"{rng.getrandbits(64):016x}",
        "question": rng.choice(
            ["Is volume 3 in stock?", "When does my order come?", "A title for a rainy day?"]
        ),
    }


def _hits(ctx: Context, prompts: Sequence[Sequence[int]], block_size: int, traced: bool) -> list[int]:
    engine = ctx.core(
        block_size=block_size,
        num_blocks=sum(len(prompt) // block_size + 2 for prompt in prompts),
        max_num_batched_tokens=max(map(len, prompts)),
        traced=traced,
    )
    for number, prompt in enumerate(prompts):
        engine.run([Ask(f"r{number}", list(prompt), 1)])
    return engine.cached_tokens


@experiment("E08")
def template_gate(
    ctx: Context,
    change: Literal["none", "edited", "volatile"] = "edited",
    position: int = arg(40, 0, 3999),
    gate: int = arg(256, 1, 4000),
    template: int = arg(512, 16, 4000),
    question: int = arg(30, 1, 500),
    requests: int = arg(5, 2, 20),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Run a CI check that compares the first tokens of the canonical prompt with those of the last version.

    A template of `template` tokens is deployed with a change at `position`; the check sees its first `gate` tokens.
    edited: one token changes, the same for all requests. volatile: one token differs in every request.

    Returns: Verdict of the check on the new version, and the hits in production afterwards.
        stopped: The first `gate` tokens differ between the old and the new version, rendered once each.
        stopped_by_two_renders: The new version's first `gate` tokens differ between two renders for two requests.
        hit_before [share]: Hit rate with the old version, its cold first request left out.
        hit_first [share]: Hit of the first request with the new version.
        hit_after [share]: Hit of all later requests.
    """
    fresh = Fresh()
    old, position = fresh(template), min(position, template - 1)

    def render(version: str) -> list[int]:
        token = {"edited": [-1], "volatile": fresh(1)}.get(version, old[position : position + 1])
        return [*old[:position], *token, *old[position + 1 :]]

    versions = ["none"] * requests + [change] * requests
    prompts = [render(version) + fresh(question) for version in versions]
    hits = _hits(ctx, prompts, block_size, traced=True)
    shares = [hit / (template + question) for hit in hits]
    return Result(
        stopped=render("none")[:gate] != render(change)[:gate],
        stopped_by_two_renders=render(change)[:gate] != render(change)[:gate],
        hit_before=sum(shares[1:requests]) / (requests - 1),
        hit_first=shares[requests],
        hit_after=sum(shares[requests + 1 :]) / (requests - 1),
    )


@experiment("E08")
def volatile_token(
    ctx: Context,
    prompt: int = arg(512, 2, 8000),
    position: int = arg(0, 0, 7999),
    requests: int = arg(4, 2, 50),
    block_size: int = arg(16, 1, 128),
) -> Result:
    """Measure how the position of one volatile token limits the prefix hit.

    The same prompt of `prompt` tokens repeats, except for the token at `position` (0 is the first). A position at or
    after the end of the prompt changes nothing.

    Returns: Hits of the second and all later requests; the first finds an empty cache.
        hit_tokens [tokens]: Per request.
        hit_if_stable [tokens]: Per request, if the token did not change.
        lost_tokens [tokens]: Computed again in every request because of that one token.
        hit_rate [share]: Hit rate of all requests, the cold first one included.
    """
    fresh = Fresh()
    changing, stable = [fresh(prompt) for _ in range(requests)], fresh(prompt)
    for tokens in changing:
        tokens[:position], tokens[position + 1 :] = stable[:position], stable[position + 1 :]
    hits = _hits(ctx, changing, block_size, traced=True)
    hit_if_stable = _hits(ctx, [stable, stable], block_size, traced=True)[1]
    return Result(
        hit_tokens=hits[1],
        hit_if_stable=hit_if_stable,
        lost_tokens=hit_if_stable - hits[1],
        hit_rate=sum(hits) / (requests * prompt),
    )


@experiment("E07")
def prefill_saving(
    model: str = "llama-3-8b",
    hardware: str = "a10g",
    prompt: int = arg(1500, 2, 32_000),
    prefix: int = arg(500, 0, 32_000),
    tp: int = arg(1, 1, 8),
) -> Result:
    """Price a prefix hit in milliseconds: TTFT of the same prompt with a cold and with a warm prefix.

    Returns: TTFT on an idle engine with the first `prefix` tokens cached, from the roofline of engine.sim.cost.
        cold_ms, warm_ms, saved_ms [ms]; speedup [x]; cached_tokens [tokens]
        flops_saved [FLOP]: Arithmetic of the linear layers: 2 x parameters x cached tokens.
    """
    prefix = min(prefix, prompt)
    deployment = deploy(model, hardware, tp=tp, max_model_len=prompt + 16)
    engine = make_engine(deployment, num_blocks=3 * (prompt // 16 + 3))
    engine.run([SimRequest(i, 1000.0 * i, prompt, 1, 0, prefix) for i in range(2)])
    cold, warm = sorted(engine.recorder.finished, key=lambda record: record.arrival)
    shape = deployment.model
    return Result(
        cold_ms=1e3 * cold.ttft,
        warm_ms=1e3 * warm.ttft,
        saved_ms=1e3 * (cold.ttft - warm.ttft),
        speedup=cold.ttft / warm.ttft,
        cached_tokens=warm.num_cached_tokens,
        flops_saved=2.0 * (shape.common_params + shape.active_routed_params) * warm.num_cached_tokens,
    )
