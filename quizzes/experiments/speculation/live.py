"""Drafts of the shop models on the live engine."""

from dataclasses import dataclass, field
from typing import Any, Literal

from quizzes.experiments import BadArguments, Context, NeedsHardware, Result, arg, experiment, generate

METHODS = {
    "ngram": {"method": "ngram"},
    "suffix": {"method": "suffix"},
    "draft_model": {"method": "draft_model", "model": "shop-draft"},
    "eagle": {"method": "eagle", "model": "shop-eagle"},
    "medusa": {"method": "medusa", "model": "shop-medusa"},
}
MEDUSA_HEADS = 4
"""Heads of `shop-medusa`; each drafts one token."""
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
    decode_rows: int = 0
    """Rows that gave tokens, without each request's first."""
    drafted: int = 0
    accepted: int = 0
    by_place: list[int] = field(default_factory=list)
    computed: int = 0
    """Positions that went through the target."""
    first_token_step: int = 0
    """Step of the first request's first token."""

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Tokens per row and step after each request's first."""
        return sum(len(tokens) - 1 for tokens in self.tokens) / max(1, self.decode_rows)


def prompts(workload: str, count: int) -> list[str]:
    """Return prompts of a workload: held-out shop conversations, or with "free" prompts unlike any shop text."""
    from engine.zoo.corpus import draw_cases

    if workload == "free":
        return [FREE[i % len(FREE)] + " " * (i // len(FREE)) for i in range(count)]
    cases = [case for case in draw_cases(400, seed=5) if case.language == "en"]
    return [case.prompt for case in cases if case.kind in KINDS[workload]][:count]


def run(
    llm: Any,
    questions: list[str],
    *,
    temperature: float,
    max_tokens: int,
    one_by_one: bool = False,
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
    fixed: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
    params = [SamplingParams(seed=seed, **fixed) for seed in range(len(questions))]
    size = 1 if one_by_one else len(questions)
    for start in range(0, len(questions), size):
        batch = slice(start, start + size)
        counted.tokens += [done.token_ids for done in generate(llm, questions[batch], params[batch])]
    counted.decode_rows -= len(questions)
    core.step = step
    return counted


@experiment("E36", seconds=40, megabytes=2500)
def lossless(
    ctx: Context,
    method: Literal["ngram", "suffix", "draft_model", "eagle", "medusa"] = "draft_model",
    workload: Literal["facts", "recommend", "tools", "free"] = "recommend",
    verifier: Literal["coupling", "rejection"] = "coupling",
    temperature: float = arg(0.0, 0, 5),
    k: int = arg(4, 1, 8),
    requests: int = arg(4, 1, 16),
    max_tokens: int = arg(32, 4, 64),
) -> Result:
    """Check that drafts leave the shop model's answers unchanged, and count the steps saved.

    Prompts of a workload run one at a time, plain and with drafts. coupling: both models use the noise of the
    position. rejection: the textbook's min(1, p / q).

    Returns: The same requests with and without drafts.
        identical: Token for token, all answers.
        steps_without, steps_with [steps]; tokens [tokens]
        tokens_per_step [tokens]: Tokens per step after a request's first token, with drafts.
        acceptance_rate [share]
        accepted_by_place [drafts]: Share of steps in which the first draft of a row was right, the second, ...
        first_token_step_without, first_token_step_with [step]; computed_without, computed_with [positions]
    """
    if method == "medusa" and k > MEDUSA_HEADS:
        raise BadArguments(
            f"shop-medusa has {MEDUSA_HEADS} heads and each drafts one token: lower k from {k}"
        )
    questions = prompts(workload, requests)

    def answer(speculative: dict[str, Any] | None) -> Counted:
        with ctx.llm(max_num_seqs=16, speculative_config=speculative, traced=speculative is not None) as llm:
            return run(llm, questions, temperature=temperature, max_tokens=max_tokens, one_by_one=True)

    plain = answer(None)
    drafts = answer({**METHODS[method], "num_speculative_tokens": k, "verifier": verifier})
    return Result(
        identical=plain.tokens == drafts.tokens,
        steps_without=plain.steps,
        steps_with=drafts.steps,
        tokens=sum(map(len, drafts.tokens)),
        tokens_per_step=drafts.tokens_per_step,
        acceptance_rate=drafts.acceptance,
        accepted_by_place=drafts.by_place,
        first_token_step_without=plain.first_token_step,
        first_token_step_with=drafts.first_token_step,
        computed_without=plain.computed,
        computed_with=drafts.computed,
    )


@experiment("E36", "E37", seconds=60, megabytes=2500)
def eagle_vs_draft(
    ctx: Context,
    workload: Literal["facts", "recommend", "tools", "chat", "free"] = "chat",
    k: int = arg(4, 1, 8),
    requests: int = arg(8, 1, 24),
    max_tokens: int = arg(32, 8, 64),
    device: Literal["auto", "cuda"] = "auto",
) -> Result:
    """Compare the acceptance of an EAGLE head and of Medusa heads with that of a draft model on the same prompts.

    All were trained on the shop's conversations: the draft model about a third as long as the target, which is more
    than usual, the EAGLE head for an hour, the Medusa heads for 8 minutes. There are 4 Medusa heads, so they draft at
    most 4 tokens.

    Returns: Accepted over drafted, greedy.
        eagle_acceptance, medusa_acceptance, draft_acceptance [share]
        eagle_tokens_per_step, medusa_tokens_per_step, draft_tokens_per_step [tokens]
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise NeedsHardware("drafters are to be compared on a GPU, and there is none (CUDA)")
    runs = {}
    for name, method, most in (
        ("eagle", "eagle", k),
        ("medusa", "medusa", MEDUSA_HEADS),
        ("draft", "draft_model", k),
    ):
        speculative = {**METHODS[method], "num_speculative_tokens": min(k, most)}
        with ctx.llm(max_num_seqs=32, speculative_config=speculative, device=device) as llm:
            runs[name] = run(llm, prompts(workload, requests), temperature=0.0, max_tokens=max_tokens)
    return Result(
        **{f"{name}_acceptance": counted.acceptance for name, counted in runs.items()},
        **{f"{name}_tokens_per_step": counted.tokens_per_step for name, counted in runs.items()},
    )
