"""Questions for the shop models, and counters of their drafts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass

METHODS = {
    "ngram": {"method": "ngram"},
    "draft_model": {"method": "draft_model", "model": "shop-draft"},
    "eagle": {"method": "eagle", "model": "shop-eagle"},
}
KINDS = {
    "facts": ("author", "price", "volumes", "stock", "genre"),
    "recommend": ("by_genre", "like", "staff"),
    "tools": ("order", "reserve"),
    "chat": ("policy", "courtesy", "greeting"),
}
"""Workload -> kinds of turns: answers that copy a line of the prompt, that choose one, that call a tool."""
FREE = ["Once there was", "In the rain the old", "My favourite thing about", "Nobody knew why the"]


@dataclass
class Counted:
    """Counters of one run."""

    tokens: list[list[int]] = field(default_factory=list)
    steps: int = 0
    rows: int = 0
    """Rows with verified drafts."""
    decode_rows: int = 0
    """Rows that gave tokens, without each request's first."""
    drafted: int = 0
    accepted: int = 0
    by_place: list[int] = field(default_factory=list)
    computed: int = 0
    """Positions that went through the target."""
    first_token_step: int = 0
    """Step of the first request's first token."""


def prompts(workload: str, count: int) -> list[str]:
    """Return prompts of a workload: held-out shop conversations, or with "free" prompts unlike any shop text."""
    from engine.zoo.corpus import draw_cases

    if workload == "free":
        return [FREE[i % len(FREE)] + " " * (i // len(FREE)) for i in range(count)]
    cases = (
        case for case in draw_cases(400, seed=5) if case.language == "en" and case.kind in KINDS[workload]
    )
    return [case.prompt for case, _ in zip(cases, range(count), strict=False)]


def run(
    llm: Any,
    questions: list[str],
    *,
    temperature: float,
    max_tokens: int,
    one_by_one: bool = False,
    ignore_eos: bool = False,
) -> Counted:
    """Answer the questions and add up the figures of all steps."""
    from engine import SamplingParams

    counted = Counted()
    core = llm.llm_engine.engine_core
    step = core.step

    def counting() -> Any:
        outputs = step()
        stats = core.scheduler.stats
        counted.steps += 1
        counted.rows += stats.num_drafts
        counted.decode_rows += sum(bool(output.new_token_ids) for output in outputs)
        counted.drafted += stats.num_draft_tokens
        counted.accepted += stats.num_accepted_tokens
        counted.computed += stats.num_prefill_tokens + stats.num_decode_tokens
        for place, number in enumerate(stats.num_accepted_tokens_per_pos):
            counted.by_place.extend([0] * (place + 1 - len(counted.by_place)))
            counted.by_place[place] += number
        if not counted.first_token_step and any(output.new_token_ids for output in outputs):
            counted.first_token_step = counted.steps
        return outputs

    core.step = counting
    try:
        params = [
            SamplingParams(temperature=temperature, seed=seed, max_tokens=max_tokens, ignore_eos=ignore_eos)
            for seed in range(len(questions))
        ]
        batches = [[pair] for pair in zip(questions, params, strict=True)]
        if not one_by_one:
            batches = [[pair for (pair,) in batches]]
        for batch in batches:
            asked, wanted = zip(*batch, strict=True)
            outputs = llm.generate(list(asked), list(wanted), use_tqdm=False)
            counted.decode_rows -= len(outputs)
            counted.tokens += [output.outputs[0].token_ids for output in outputs]
    finally:
        core.step = step
    return counted
