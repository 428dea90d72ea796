"""Speculation with adapters: drafts come from the base and never change tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import LLM, LoRARequest, RequestOutput, SamplingParams
from tests.lora.conftest import OpenLLM

DRAFTERS = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 3},
    "draft_model": {"method": "draft_model", "model": "shop-draft", "num_speculative_tokens": 3},
}
PROMPTS = [
    "Glass Orchard, Glass Orchard, Glass",
    "<|im_start|>user\nHow much is Glass Orchard?<|im_end|>\n<|im_start|>assistant\n",
    "1 2 3 1 2 3 1 2",
]
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.7, seed=5, max_tokens=24, ignore_eos=True)


class Steps:
    """Adds up what the drafts of an engine came to."""

    def __init__(self, llm: LLM) -> None:
        self.num_drafted = self.num_accepted = 0
        core = llm.llm_engine.engine_core
        step = core.step

        def counted() -> Any:
            outputs = step()
            self.num_drafted += core.scheduler.stats.num_draft_tokens
            self.num_accepted += core.scheduler.stats.num_accepted_tokens
            return outputs

        core.step = counted


def answers(llm: LLM, adapters: list[Path], params: SamplingParams) -> list[RequestOutput]:
    """Every prompt with every adapter and the base, in one batch."""
    loras = [LoRARequest(path.name, number, str(path)) for number, path in enumerate(adapters, start=1)]
    everything = [*loras, None]
    prompts = [prompt for prompt in PROMPTS for _ in everything]
    return llm.generate(prompts, params, lora_request=everything * len(PROMPTS), use_tqdm=False)


@pytest.mark.parametrize("eager", [False, True], ids=["replayed", "eager"])
@pytest.mark.parametrize("method", DRAFTERS)
def test_with_drafts_every_adapter_says_what_it_says_without(
    adapters: list[Path], open_llm: OpenLLM, method: str, eager: bool
) -> None:
    settings: dict[str, Any] = {"enable_lora": True, "max_loras": 2, "enforce_eager": eager}
    expected = answers(open_llm(**settings), adapters, GREEDY)
    llm = open_llm(**settings, speculative_config=DRAFTERS[method])
    steps = Steps(llm)
    for output, plain in zip(answers(llm, adapters, GREEDY), expected, strict=True):
        assert output.outputs[0].token_ids == plain.outputs[0].token_ids
    assert 0 < steps.num_accepted < steps.num_drafted, "some drafts are right and some wrong"


def test_seeded_draws_with_prompt_lookup_are_those_without(adapters: list[Path], open_llm: OpenLLM) -> None:
    settings: dict[str, Any] = {"enable_lora": True, "max_loras": 3}
    expected = answers(open_llm(**settings), adapters, DRAWN)
    llm = open_llm(**settings, speculative_config=DRAFTERS["ngram"])
    steps = Steps(llm)
    for output, plain in zip(answers(llm, adapters, DRAWN), expected, strict=True):
        assert output.outputs[0].token_ids == plain.outputs[0].token_ids
    assert steps.num_drafted
