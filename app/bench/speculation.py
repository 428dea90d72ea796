"""Measure the speed-up by drafts: engines with and without them run the same requests in turns.

    wave 1   plain | ngram | suffix | draft_model | ...      each wave: so many requests that start together; only steps
    wave 2   plain | ngram | suffix | draft_model | ...      without prompt tokens count, for all engines alike

Four workloads: answers that copy the catalogue (repetitive), four samples of each answer at temperature 0.7, as agents
and self-consistency ask for them (agentic), tool calls (json), and text sampled at temperature 1 (free).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from time import perf_counter
from typing import Any

from app.bench.timing import Tell, partial_results
from engine.config import EngineArgs, SpeculativeConfig
from engine.core.request import Request
from engine.engine_core import EngineCore
from engine.sampling_params import SamplingParams

WORKLOADS = {
    "repetitive": ("by_genre", "like", "staff", "longer", "cheaper"),
    "agentic": ("order", "reserve", "by_genre", "like"),
    "json": ("order", "reserve"),
    "free": (),
}
"""Workload -> kinds of the zoo's questions (`engine/zoo/dialogue.py`)."""
MAX_TOKENS = 96
SAMPLES = 4
"""Samples of each answer in the workload `agentic`."""
FREE_PROMPT_TOKENS = 24
MODELS = {"draft_model": "shop-draft", "eagle": "shop-eagle", "medusa": "shop-medusa"}


@dataclass(frozen=True)
class Ask:
    """One request of a workload."""

    prompt: list[int]
    params: SamplingParams
    length: int
    """Tokens of the expected answer: requests of one wave should end together."""
    seed: int = 0


@dataclass
class Run:
    """One engine on one workload at one batch size."""

    seconds: float = 0.0
    tokens: int = 0
    rows: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_pos: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """Drafts compared with none, for one workload, method and batch size."""

    workload: str
    method: str
    batch_size: int
    plain_tokens_per_s: float
    tokens_per_s: float
    speedup: float
    tokens_per_step: float
    """Tokens that a request gets in one step; 1 without drafts."""
    acceptance: float
    acceptance_per_pos: list[float]
    """Share of the drafted rows whose first draft was accepted, whose second was, and so on."""
    is_identical: bool
    """Whether every answer has exactly the tokens of the engine without drafts."""


@dataclass
class SpeculationReport:
    model: str
    num_speculative_tokens: int
    results: list[Result] = field(default_factory=list)
    interrupted: bool = False

    def break_even(self, workload: str, method: str) -> int | None:
        """Return the smallest measured batch size at which drafts slow the engine down; None if there is none."""
        results = [
            result for result in self.results if (result.workload, result.method) == (workload, method)
        ]
        return min((result.batch_size for result in results if result.speedup < 1), default=None)


def configs(methods: Sequence[str], num_speculative_tokens: int) -> dict[str, SpeculativeConfig]:
    """Return a configuration for each method, with the zoo's models."""
    by_method = {}
    for method in methods:
        settings: dict[str, Any] = {"method": method, "num_speculative_tokens": num_speculative_tokens}
        if method in MODELS:
            settings["model"] = MODELS[method]
        config = SpeculativeConfig.from_args(settings)
        assert config is not None
        by_method[method] = config
    return by_method


def measure(
    tell: Tell,
    model: str,
    engine: dict[str, Any],
    drafters: dict[str, SpeculativeConfig],
    *,
    workloads: Sequence[str],
    batch_sizes: Sequence[int],
    requests: int,
) -> SpeculationReport:
    """Run the benchmark; Ctrl-C ends it early with what is done."""
    report = SpeculationReport(model, max(config.num_speculative_tokens for config in drafters.values()))
    engines: dict[str, EngineCore] = {}
    with partial_results(report):
        for name, config in [("plain", None), *drafters.items()]:
            tell(f"loading {model}, {name}")
            settings = {**engine, "speculative_config": None if config is None else asdict(config)}
            engines[name] = EngineCore.from_args(EngineArgs.create(model=model, **settings))
        for workload in workloads:
            asks = draw(workload, max(requests, *batch_sizes), engines["plain"])
            for batch_size in batch_sizes:
                tell(f"{workload}, {batch_size} at once")
                report.results += _compare(engines, workload, asks, batch_size)
    for core in engines.values():
        core.shutdown()
    return report


def draw(workload: str, count: int, core: EngineCore) -> list[Ask]:
    """Draw `count` requests, sorted by length so that those of one wave end together."""
    from engine.zoo.corpus import draw_conversation, to_cases
    from engine.zoo.registry import resolve
    from engine.zoo.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(resolve("shop"))
    longest = core.scheduler.config.max_model_len - MAX_TOKENS
    asks: list[Ask] = []
    index = 0
    while len(asks) < count:
        for case in to_cases(draw_conversation("test", 0, index)):
            prompt = tokenizer.encode(case.prompt).ids
            if workload == "free":
                params = SamplingParams(temperature=1.0, max_tokens=64, ignore_eos=True)
                start = Random(len(asks)).randrange(len(prompt) - FREE_PROMPT_TOKENS)
                asks.append(Ask(prompt[start : start + FREE_PROMPT_TOKENS], params, 64, len(asks)))
            elif case.kind in WORKLOADS[workload] and len(prompt) < longest:
                is_agentic = workload == "agentic"
                params = SamplingParams(temperature=0.7 if is_agentic else 0, max_tokens=MAX_TOKENS)
                length = len(tokenizer.encode(case.answer).ids)
                samples = range(len(asks), len(asks) + (SAMPLES if is_agentic else 1))
                asks += [Ask(prompt, params, length, seed) for seed in samples]
        index += 1
    return sorted(asks[:count], key=lambda ask: ask.length)


def _compare(engines: dict[str, EngineCore], workload: str, asks: list[Ask], batch_size: int) -> list[Result]:
    """Run every wave in every engine, in turns; the first wave twice, to warm up."""
    waves = [asks[start : start + batch_size] for start in range(0, len(asks), batch_size)]
    for core in engines.values():
        _run_wave(core, waves[0], Run())
    runs = {name: Run() for name in engines}
    differing: set[str] = set()
    for wave in waves:
        expected = None
        for name, core in engines.items():  # the plain engine is the first
            answers = _run_wave(core, wave, runs[name])
            expected = expected or answers
            if answers != expected:
                differing.add(name)
    plain = runs.pop("plain")
    before = plain.tokens / plain.seconds
    results = []
    for name, run in runs.items():
        after = run.tokens / run.seconds
        result = Result(
            *(workload, name, batch_size, before, after, after / before),
            tokens_per_step=run.tokens / max(1, run.rows),
            acceptance=run.num_accepted_tokens / max(1, run.num_draft_tokens),
            acceptance_per_pos=[count / run.num_drafts for count in run.accepted_per_pos],
            is_identical=name not in differing,
        )
        results.append(result)
    return results


def _run_wave(core: EngineCore, wave: list[Ask], run: Run) -> dict[str, list[int]]:
    """Run requests that start together; return tokens by request id. Adds the steps without prompts to `run`."""
    eos = frozenset(core.config.model.eos_token_ids)
    answers: dict[str, list[int]] = {}
    for index, ask in enumerate(wave):
        ends = frozenset() if ask.params.ignore_eos else eos
        core.add_request(Request(str(index), ask.prompt, ask.params, seed=ask.seed, eos_token_ids=ends))
        answers[str(index)] = []
    while core.has_unfinished():
        began = perf_counter()
        outputs = core.step()
        seconds = perf_counter() - began
        for output in outputs:
            answers[output.request_id] += output.new_token_ids
        stats = core.scheduler.stats
        if not stats.num_prefill_tokens:
            run.seconds += seconds
            run.tokens += stats.num_generated_tokens
            run.rows += len(outputs)
            run.num_drafts += stats.num_drafts
            run.num_draft_tokens += stats.num_draft_tokens
            run.num_accepted_tokens += stats.num_accepted_tokens
            for position, count in enumerate(stats.num_accepted_tokens_per_pos):
                run.accepted_per_pos += [0] * (position + 1 - len(run.accepted_per_pos))
                run.accepted_per_pos[position] += count
    return answers
