"""Workloads for comparing engines: prompts as token ids, and the settings both engines get.

The shop model's own test split: chat prompts on catalogues that training never saw.
"""

from __future__ import annotations

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
    sampling: dict[str, Any]
    engine: dict[str, Any] = field(default_factory=dict)

    @property
    def prompts(self) -> list[list[int]]:
        return [prompt for prompts in self.rounds for prompt in prompts]


def greedy(model: Path, count: int) -> Workload:
    """`count` unrelated chat prompts at once: are the tokens the same?"""
    encode = _encoder(model)
    cases = (to_cases(conversation)[-1] for conversation in conversations("test", SEED, count))
    prompts = [encode(case.prompt) for case in islice(cases, count)]
    return Workload("greedy", [prompts], _sampling(max_tokens=48))


def chat(model: Path, talks: int = 12) -> Workload:
    """Conversations turn by turn: every round repeats the history, so the prefix cache must hit."""
    encode = _encoder(model)
    per_talk = [
        [encode(c.prompt) for c in to_cases(talk)][:5] for talk in conversations("test", SEED + 1, talks)
    ]
    rounds = [[turns[i] for turns in per_talk if i < len(turns)] for i in range(5)]
    return Workload("chat", rounds, _sampling(max_tokens=16))


def crowded(model: Path, count: int = 24) -> Workload:
    """More growing sequences than the cache holds: how often is somebody preempted?"""
    encode = _encoder(model)
    prompts = [encode(to_cases(talk)[0].prompt) for talk in conversations("test", SEED + 2, count)]
    settings = {"num_gpu_blocks_override": 96, "enable_prefix_caching": False, "max_num_seqs": 16}
    return Workload("crowded", [prompts], _sampling(max_tokens=128, ignore_eos=True), settings)


def _sampling(**settings: Any) -> dict[str, Any]:
    return {"temperature": 0.0, "logprobs": 5, "detokenize": False, **settings}


def _encoder(model: Path):
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids
