"""The shipped model says, token for token, what it says in transformers, however the engine gets there."""

from __future__ import annotations

from functools import cache
from itertools import islice

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine import LLM, SamplingParams
from engine.zoo.corpus import conversations, to_cases
from engine.zoo.registry import resolve

MAX_TOKENS = 48
COUNT = 200
FEW = 60
"""Answers of the ways that differ from the first."""

WAYS = {
    "one batch": {},
    "without prefix cache": {"enable_prefix_caching": False},
    "in chunks of 7": {"max_num_batched_tokens": 7, "max_num_seqs": 4},
    "with preemptions": {"num_gpu_blocks_override": 110, "max_num_seqs": 16},
    "without replayed steps": {"enforce_eager": True},
    "attention through SDPA": {"attention_backend": "sdpa"},
    "reference attention": {"attention_backend": "reference"},
}


@cache
def shop_prompts() -> list[list[int]]:
    """One prompt from each of 200 conversations about shops that training never saw."""
    tokenizer = AutoTokenizer.from_pretrained(resolve("shop"))
    cases = (to_cases(conversation)[1] for conversation in conversations("test", 11, COUNT))
    return [tokenizer.encode(case.prompt, add_special_tokens=False) for case in islice(cases, COUNT)]


@cache
def said_in_transformers() -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(resolve("shop"), dtype=torch.float32)
    answers = []
    for prompt in shop_prompts():
        ids = torch.tensor([prompt])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False
        )
        answers.append(output[0, len(prompt) :].tolist())
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_answers_equal_those_of_transformers(way: str) -> None:
    count = FEW if WAYS[way] else COUNT
    with LLM("shop", dtype="float32", debug_checks=True, **WAYS[way]) as llm:
        outputs = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in shop_prompts()[:count]],
            SamplingParams(temperature=0, max_tokens=MAX_TOKENS),
            use_tqdm=False,
        )
    if way == "with preemptions":
        assert sum(output.metrics.num_preemptions for output in outputs) > 0
    assert [output.outputs[0].token_ids for output in outputs] == said_in_transformers()[:count]
