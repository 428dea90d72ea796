"""The tiers on a trained model, through `LLM`: the same answers, and every hit where it should come from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine import LLM, SamplingParams
from engine.outputs import RequestOutput

QUESTIONS = [
    f"Hello, I am customer {name}. I would like to know when my order of {count} lamps will arrive, please."
    for count, name in enumerate(("Ann", "Bob", "Cleo", "Dan", "Eve", "Finn"), start=2)
]
PARAMS = [SamplingParams(temperature=i % 2, seed=i, max_tokens=48, ignore_eos=True) for i in range(6)]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def answers(**settings: object) -> tuple[list[RequestOutput], dict[str, int]]:
    """Outputs, and the sums of the copies that the steps planned."""
    llm = LLM("shop", max_num_batched_tokens=256, debug_checks=True, **settings)
    core = llm.llm_engine.engine_core
    sums = {"num_blocks_swapped_out": 0, "num_blocks_copied_in": 0, "num_preempted": 0}
    update = core.scheduler.update

    def counting(*step: object) -> object:
        outputs = update(*step)
        for name in sums:
            sums[name] += getattr(core.scheduler.stats, name)
        return outputs

    core.scheduler.update = counting
    with llm:
        outputs = llm.generate(QUESTIONS, PARAMS, use_tqdm=False)
        host = core.scheduler.kv.host
        assert core.scheduler.kv.pool.num_used == 0 and (host is None or host.pool.num_used == 0)
    return outputs, sums


@pytest.fixture(scope="module")
def alone() -> list[str]:
    torch.set_num_threads(1)
    return [output.outputs[0].text for output in answers()[0]]


SMALL = {"num_gpu_blocks_override": 16, "max_model_len": 160}
"""Room for two or three of the six."""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("caching", [True, False])
def test_answers_do_not_depend_on_what_became_of_the_preempted(
    alone: list[str], mode: str, caching: bool
) -> None:
    settings = {"preemption_mode": mode, "enable_prefix_caching": caching, **SMALL}
    outputs, sums = answers(**settings)
    assert [output.outputs[0].text for output in outputs] == alone
    assert sums["num_preempted"] > 0
    assert (sums["num_blocks_swapped_out"] > 0) == (mode == "swap")
    assert (sums["num_blocks_copied_in"] > 0) == (mode == "swap")


def test_drafts_swap_and_a_full_host_together_change_nothing(alone: list[str]) -> None:
    drafts = {"method": "ngram", "num_speculative_tokens": 3}
    tiny = 5 * 16 * 2 * 1024 / 2**30  # a handful of blocks: most victims are computed again
    outputs, sums = answers(preemption_mode="swap", swap_space=tiny * 16, speculative_config=drafts, **SMALL)
    assert [output.outputs[0].text for output in outputs] == alone
    assert sums["num_preempted"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_every_rank_swaps_its_part(alone: list[str], ranks: str) -> None:
    outputs, sums = answers(preemption_mode="swap", **{ranks: 2}, **SMALL)
    assert [output.outputs[0].text for output in outputs] == alone
    assert min(sums["num_preempted"], sums["num_blocks_copied_in"]) > 0


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[LLM]:
    with LLM(
        "shop",
        num_gpu_blocks_override=16,
        max_model_len=240,
        kv_offloading_size=0.1,
        kv_transfer_config={
            "kv_connector": "DiskConnector",
            "kv_connector_extra_config": {"path": str(tmp_path)},
        },
    ) as llm:
        yield llm


def test_every_hit_comes_from_where_its_blocks_are(tiered: LLM) -> None:
    prompt = list(range(20, 101))  # five blocks and a token
    greedy = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)

    def serve(token_ids: list[int]) -> RequestOutput:
        (output,) = tiered.generate([token_ids], greedy, use_tqdm=False)
        return output

    first = serve(prompt)
    device = serve(prompt)
    for filler in (7, 8):
        serve([filler] * 230)  # 15 blocks each: nothing else stays on the device
    host = serve(prompt)
    tiered.reset_prefix_cache()
    disk = serve(prompt)
    sources = [output.prompt_tokens_cached_by_source for output in (first, device, host, disk)]
    assert sources == [{}, {"device": 80}, {"host": 80}, {"disk": 80}]
    assert {output.num_cached_tokens for output in (device, host, disk)} == {80}
    assert {tuple(output.outputs[0].token_ids) for output in (device, host, disk)} == {
        tuple(first.outputs[0].token_ids)
    }
