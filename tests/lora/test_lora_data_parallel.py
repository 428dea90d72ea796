"""Adapters and data parallelism: each replica has its own slots, and an adapter is loaded in all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import LoRARequest, SamplingParams
from engine.exec.dp import DataParallelCore
from engine.frontend.input_processor import InvalidRequestError
from tests.lora.conftest import OpenLLM
from tests.lora.peft_files import write_adapter

TITLES = ["Silver Harbor", "Glass Orchard", "Golden River", "Paper Moon"]
PROMPTS = [text for title in TITLES for text in (f"Readers of {title} enjoy", f"How much is {title}?")]
TEN = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)


def halves(rows: list[list[int]]) -> list[list[list[int]]]:
    """Four answers each: two with the adapter, two of the base."""
    return [rows[:4], rows[4:]]


@pytest.mark.slow
def test_an_adapter_is_loaded_replaced_and_unloaded_in_both_replicas(
    tmp_path: Path, open_llm: OpenLLM
) -> None:
    path = write_adapter(tmp_path / "mine", seed=1, rank=8)
    alone = open_llm(enable_lora=True)
    pair = open_llm(enable_lora=True, data_parallel_size=2)
    core = pair.llm_engine.engine_core
    assert isinstance(core, DataParallelCore)
    answers = []
    for seed in (1, 2):
        write_adapter(path, seed=seed, rank=8)
        got = []
        for llm in (alone, pair):
            mine = llm.load_lora_adapter("mine", str(path), load_inplace=seed > 1)
            outputs = llm.generate(PROMPTS, TEN, lora_request=[mine, mine, None, None] * 2, use_tqdm=False)
            got.append([output.outputs[0].token_ids for output in outputs])
        assert got[0] == got[1]
        answers.append(got[1])
    assert [rows[2:4] for rows in halves(answers[0])] == [rows[2:4] for rows in halves(answers[1])]
    assert all(old[:2] != new[:2] for old, new in zip(*map(halves, answers), strict=True))
    assert all(core.router.num_routed), "both replicas had work"

    loaded = pair.list_lora_adapters()[0]
    pair.unload_lora_adapter("mine")
    assert not pair.list_lora_adapters()
    with pytest.raises(InvalidRequestError, match="/nowhere"):
        pair.generate(PROMPTS[0], TEN, lora_request=LoRARequest("lost", 1, "/nowhere"), use_tqdm=False)
    [again] = pair.generate(PROMPTS[0], TEN, lora_request=loaded, use_tqdm=False)
    assert again.outputs[0].token_ids == answers[1][0]
