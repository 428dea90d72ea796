from random import Random
from typing import Any

from quizzes.experiments import Ask, Context, Result, arg, experiment
from quizzes.experiments.prefix_cache._canonical import canonical_prompt as canonical
from quizzes.experiments.prefix_cache._canonical import naive_prompt

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

    Returns:
        One token per byte, so that the result depends on no tokenizer.
        stable_bytes [tokens]: Length of what all canonical prompts start with.
        naive_hit_rate, canonical_hit_rate [share]
        naive_hit_tokens [tokens]: All requests but the first.
        canonical_hit_tokens [tokens]: All requests but the first.
        spellings [spellings]: Different byte strings before the question among the naive prompts, with date and
            request id left out.
        canonical_spellings [spellings]
    """
    rng = Random(seed)
    sent = [_from_a_client(rng, number) for number in range(requests)]
    naive, canonic = [naive_prompt(parts, stamped) for parts in sent], [canonical(parts) for parts in sent]
    naive_hits = _hits(ctx, naive, block_size, traced=False)
    canonical_hits = _hits(ctx, canonic, block_size, traced=True)
    heads = {prompt.split(b"\ndate:")[0] for prompt in canonic}
    bodies = {naive_prompt(parts, False).rsplit(b"\n", 1)[0] for parts in sent}
    return Result(
        stable_bytes=_common_prefix(canonic),
        naive_hit_rate=sum(naive_hits) / sum(map(len, naive)),
        canonical_hit_rate=sum(canonical_hits) / sum(map(len, canonic)),
        naive_hit_tokens=sum(naive_hits),
        canonical_hit_tokens=sum(canonical_hits),
        spellings=len(bodies),
        canonical_spellings=len(heads),
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


def _hits(ctx: Context, prompts: list[bytes], block_size: int, traced: bool) -> list[int]:
    engine = ctx.core(
        block_size=block_size,
        num_blocks=sum(len(prompt) // block_size + 2 for prompt in prompts),
        max_num_batched_tokens=max(map(len, prompts)),
        traced=traced,
    )
    for number, prompt in enumerate(prompts):
        engine.run([Ask(f"r{number}", list(prompt), 1)])
    return [engine.outcomes[f"r{number}"].cached_tokens for number in range(len(prompts))]


def _common_prefix(prompts: list[bytes]) -> int:
    length = 0
    while all(length < len(prompt) and prompt[length] == prompts[0][length] for prompt in prompts):
        length += 1
    return length
