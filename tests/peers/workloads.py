"""Workloads for comparing engines: prompts as token ids, and the settings both engines get.

The shop model's own test split: chat prompts on catalogues that training never saw.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.zoo.corpus import conversations, to_cases

SEED = 2026
BLOCK_SIZE = 32
"""vLLM's CPU attention takes multiples of 32."""


@dataclass(frozen=True)
class Workload:
    """Rounds run one after the other; the prompts of one round run together."""

    name: str
    rounds: list[list[list[int]]]
    sampling: dict[str, Any] | list[dict[str, Any]]
    """For all prompts, or one for each prompt of a round."""
    engine: dict[str, Any] = field(default_factory=dict)
    adapters: list[str | None] = field(default_factory=list)
    """Folders, one for each prompt of a round."""
    beam: dict[str, Any] | None = None
    """Search with these BeamSearchParams instead of sampling."""
    model: str | None = None
    """A folder in place of the model of the whole comparison."""
    note: str = ""
    """Differences between the engines by design."""
    must_agree: bool = True
    """False where the note is about the tokens themselves: a difference fails nothing then."""
    near_tie: float = 0.02
    """Nats between two tokens that rounding may exchange."""
    not_in_vllm: str = ""
    """Reason why its CPU build cannot run this. If it can after all, the outputs must agree."""

    @property
    def prompts(self) -> list[list[int]]:
        return [prompt for prompts in self.rounds for prompt in prompts]


def greedy(model: Path, count: int) -> Workload:
    """`count` unrelated chat prompts at once: are the tokens the same?"""
    return Workload("greedy", [last_turns(model, count)], sampling(max_tokens=48))


def chat(model: Path, talks: int = 12) -> Workload:
    """Conversations turn by turn: every round repeats the history, so the prefix cache must hit."""
    encode = encoder(model)
    per_talk = [
        [encode(c.prompt) for c in to_cases(talk)][:5] for talk in conversations("test", SEED + 1, talks)
    ]
    rounds = [[turns[i] for turns in per_talk if i < len(turns)] for i in range(5)]
    return Workload("chat", rounds, sampling(max_tokens=16))


def crowded(model: Path, count: int = 24) -> Workload:
    """More growing sequences than the cache holds: counts preemptions."""
    encode = encoder(model)
    prompts = [encode(to_cases(talk)[0].prompt) for talk in conversations("test", SEED + 2, count)]
    settings = {"num_gpu_blocks_override": 96, "enable_prefix_caching": False, "max_num_seqs": 16}
    return Workload("crowded", [prompts], sampling(max_tokens=128, ignore_eos=True), settings)


def last_turns(model: Path, count: int) -> list[list[int]]:
    """Prompts that have nothing to do with each other: conversations up to the last question."""
    encode = encoder(model)
    cases = (to_cases(conversation)[-1] for conversation in conversations("test", SEED, count))
    return [encode(case.prompt) for case in islice(cases, count)]


def sampling(**settings: Any) -> dict[str, Any]:
    """SamplingParams: greedy, and with the runners-up, so that a difference can be explained."""
    return {"temperature": 0.0, "logprobs": 5, "detokenize": False, **settings}


def encoder(model: Path) -> Callable[[str], list[int]]:
    """Text to token ids."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
