"""Two tensor ranks say what one process says, with the number of collectives that the paper promises."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, SamplingParams
from engine.outputs import RequestOutput
from engine.sim.interconnect import step_traffic
from tests.engine.harness import TINY_LLAMA
from tests.parallel import probes

PROMPTS = ["What do you recommend for a rainy evening?", "Readers of", "Hello"]
PARAMS = [
    SamplingParams(max_tokens=12, temperature=0.0, logprobs=5),
    SamplingParams(max_tokens=12, temperature=1.0, seed=3, n=2),
    SamplingParams(max_tokens=12, temperature=0.8, top_p=0.9, seed=4, prompt_logprobs=5),
]
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 24}
ONE_KV_HEAD = {"num_key_value_heads": 1}


def said(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[list(completion.token_ids) for completion in output.outputs] for output in outputs]


def logprobs_of(outputs: list[RequestOutput]) -> list[float]:
    """Every log-probability that came along, in order of token id."""
    positions = [entry for output in outputs for c in output.outputs for entry in c.logprobs or []]
    positions += [entry for output in outputs for entry in output.prompt_logprobs or [] if entry]
    return [entry[token].logprob for entry in positions for token in sorted(entry)]


@pytest.fixture(scope="module")
def alone() -> Iterator[LLM]:
    with LLM("shop", dtype="float32") as llm:
        yield llm


@pytest.fixture(scope="module")
def pair() -> Iterator[LLM]:
    with LLM("shop", dtype="float32", tensor_parallel_size=2) as llm:
        yield llm


@pytest.mark.slow
def test_shop_says_the_same_in_two_halves_greedy_and_seeded(alone: LLM, pair: LLM) -> None:
    expected, got = alone.generate(PROMPTS, PARAMS), pair.generate(PROMPTS, PARAMS)
    assert said(got) == said(expected)
    assert logprobs_of(got) == pytest.approx(logprobs_of(expected), abs=1e-4)
    assert len(logprobs_of(got)) > 60


@pytest.mark.slow
def test_a_step_has_two_all_reduces_per_layer_one_for_the_embedding_and_a_gather(pair: LLM) -> None:
    core = pair.llm_engine.engine_core
    num_layers, hidden, vocab = 6, 256, 2048
    before = core.executor.collective_rpc(probes.traffic)
    steps = 0
    stream = pair.stream("Hello", SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True))
    for _ in stream:
        steps += 1
        stats = core.scheduler.stats
        assert stats.num_collectives == 2 * num_layers + 1 + 1
        expected = step_traffic(
            hidden_size=hidden,
            num_layers=num_layers,
            vocab_size=vocab,
            value_bytes=4,
            num_tokens=stats.num_scheduled_tokens,
            num_sampled=1,
            tensor_parallel_size=2,
        )
        assert stats.collective_bytes == expected.all_reduce_bytes + expected.gather_bytes
    after = core.executor.collective_rpc(probes.traffic)
    for rank in range(2):
        calls = {
            name: count - before[rank]["tensor"].get(name, 0) for name, count in after[rank]["tensor"].items()
        }
        assert calls == {"all_reduce": steps * (2 * num_layers + 1), "gather": steps}


def test_every_rank_has_the_same_rows_in_the_same_order_with_the_same_tokens(pair: LLM) -> None:
    executor = pair.llm_engine.engine_core.executor
    executor.collective_rpc(probes.watch_rows)
    pair.generate(PROMPTS, PARAMS)
    first, second = executor.collective_rpc(probes.seen_rows)
    assert first == second and len(first) >= 12
    assert any(len(rows) > 3 for rows, _ in first)


@pytest.mark.slow
def test_structured_output_is_the_same_in_two_halves(alone: LLM, pair: LLM) -> None:
    from engine.sampling_params import StructuredOutputsParams

    params = SamplingParams(
        max_tokens=40,
        temperature=1.0,
        seed=5,
        structured_outputs=StructuredOutputsParams(regex=r"(yes|no), [a-z]{3,8}\."),
    )
    expected, got = alone.generate(PROMPTS, params), pair.generate(PROMPTS, params)
    assert said(got) == said(expected)
    assert all(output.outputs[0].text.split(",")[0] in ("yes", "no") for output in got)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [QWEN3, QWEN2, MISTRAL, ONE_KV_HEAD])
@pytest.mark.parametrize("split", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}])
def test_other_families_say_the_same_with_chunks_cache_and_preemption(
    tmp_path: Path, changes: dict[str, Any], split: dict[str, int]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TINY_LLAMA, **changes}))
    settings: dict[str, Any] = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "block_size": 4,
        "max_model_len": 80,
        "max_num_batched_tokens": 16,
        "num_gpu_blocks_override": 24,
        "max_num_seqs": 4,
        "debug_checks": True,
    }
    prompts = [list(range(3, 33)), list(range(3, 20)), [7, 7, 7], list(range(40, 75))]
    params = [SamplingParams(max_tokens=30, temperature=t, seed=1, ignore_eos=True) for t in (0, 1, 1, 0)]
    results = []
    for options in ({}, split):
        with LLM(str(tmp_path), **settings, **options) as llm:
            results.append([said(llm.generate(prompts, params, use_tqdm=False)) for _ in range(2)])
    assert results[0] == results[1]
