"""An adapter computes the same as its merged weights, in any batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import LLM, LoRARequest, RequestOutput, SamplingParams
from tests.lora.conftest import OpenLLM
from tests.lora.peft_files import merge

PROMPTS = [
    "Readers of Silver Harbor enjoy",
    "<|im_start|>user\nHow much is Glass Orchard?<|im_end|>\n",
    "返品は",
    "Our mystery pick is Golden River. Golden River costs",
]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=5, prompt_logprobs=0)
TOLERANCE = 1e-4


def requests(adapters: list[Path]) -> list[LoRARequest]:
    return [LoRARequest(path.name, number, str(path)) for number, path in enumerate(adapters, start=1)]


def tokens(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


def assert_same_numbers(a: RequestOutput, b: RequestOutput) -> None:
    assert tokens(a) == tokens(b)
    positions = [*zip(a.outputs[0].logprobs, b.outputs[0].logprobs, strict=True)]
    positions += zip(a.prompt_logprobs[1:], b.prompt_logprobs[1:], strict=True)
    for ours, theirs in positions:
        assert ours.keys() == theirs.keys()
        for token_id, entry in ours.items():
            assert entry.logprob == pytest.approx(theirs[token_id].logprob, rel=TOLERANCE, abs=TOLERANCE)


def mixed(llm: LLM, adapters: list[Path], params: SamplingParams = GREEDY) -> list[RequestOutput]:
    """Every prompt with every adapter and the base, in one batch."""
    everything = [*requests(adapters), None]
    return llm.generate(
        [prompt for prompt in PROMPTS for _ in everything],
        params,
        lora_request=everything * len(PROMPTS),
        use_tqdm=False,
    )


@pytest.mark.parametrize("eager", [False, True], ids=["replayed", "eager"])
def test_a_mixed_batch_gives_what_merged_weights_give(
    adapters: list[Path], open_llm: OpenLLM, tmp_path: Path, eager: bool
) -> None:
    llm = open_llm(enable_lora=True, max_loras=3, max_num_seqs=16, enforce_eager=eager)
    outputs = mixed(llm, adapters)
    models = [*(merge(path, tmp_path / path.name) for path in adapters), "shop"]
    for index, model in enumerate(models):
        alone = open_llm(model, enforce_eager=eager).generate(PROMPTS, GREEDY, use_tqdm=False)
        for ours, theirs in zip(outputs[index :: len(models)], alone, strict=True):
            assert_same_numbers(ours, theirs)
    different = {round(output.outputs[0].cumulative_logprob, 2) for output in outputs[: len(models)]}
    assert len(different) == len(models), "adapters that change nothing prove nothing"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_replayed_steps_compute_adapters_in_16_bits(
    adapters: list[Path], open_llm: OpenLLM, dtype: str
) -> None:
    """The base decodes first: its graphs are compared before those with adapters exist."""
    found = []
    for eager in (False, True):
        llm = open_llm(enable_lora=True, max_loras=3, max_num_seqs=16, enforce_eager=eager, dtype=dtype)
        llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        found.append([(tokens(each), each.outputs[0].logprobs) for each in mixed(llm, adapters)])
    assert found[0] == found[1]


def test_a_mixed_batch_gives_bit_for_bit_what_each_request_gives_alone(
    adapters: list[Path], open_llm: OpenLLM
) -> None:
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=12, ignore_eos=True, logprobs=3)
    llm = open_llm(enable_lora=True, max_loras=3, max_num_seqs=16, enable_prefix_caching=False)
    together = mixed(llm, adapters, params)
    everything = [*requests(adapters), None]
    for number, output in enumerate(together):
        prompt, lora = PROMPTS[number // len(everything)], everything[number % len(everything)]
        [alone] = llm.generate(prompt, params, lora_request=lora, use_tqdm=False)
        assert alone.outputs[0].logprobs == output.outputs[0].logprobs
        assert output.lora_request == lora


def test_the_base_is_what_it_is_without_adapters(adapters: list[Path], open_llm: OpenLLM) -> None:
    with_room = open_llm(enable_lora=True, max_loras=3, max_num_seqs=16)
    outputs = mixed(with_room, adapters)[len(adapters) :: len(adapters) + 1]
    for ours, plain in zip(outputs, open_llm().generate(PROMPTS, GREEDY, use_tqdm=False), strict=True):
        assert ours.outputs[0].logprobs == plain.outputs[0].logprobs


def test_a_smaller_rank_is_filled_up_with_zeros_and_means_the_same(
    adapters: list[Path], open_llm: OpenLLM
) -> None:
    small = open_llm(enable_lora=True, max_lora_rank=8)
    large = open_llm(enable_lora=True, max_lora_rank=64)
    [lora] = requests(adapters[:1])
    for prompt in PROMPTS:
        ours = [llm.generate(prompt, GREEDY, lora_request=lora, use_tqdm=False)[0] for llm in (small, large)]
        assert_same_numbers(*ours)


def test_a_long_prompt_is_computed_in_chunks_and_beyond_a_block_of_the_mlp(
    adapters: list[Path], open_llm: OpenLLM, tmp_path: Path
) -> None:
    """More tokens in a step than the MLP takes at once, and the same in small chunks."""
    prompt = list(range(100, 1000))
    [lora] = requests(adapters[:1])
    merged = open_llm(merge(adapters[0], tmp_path / "merged"))
    [expected] = merged.generate(prompt, GREEDY, use_tqdm=False)
    for budget in (2048, 64):
        llm = open_llm(enable_lora=True, max_num_batched_tokens=budget)
        neighbours = [prompt, PROMPTS[0], PROMPTS[1]]
        output, *_ = llm.generate(neighbours, GREEDY, lora_request=[lora, None, lora], use_tqdm=False)
        assert_same_numbers(output, expected)


def test_n_completions_share_the_adapter(adapters: list[Path], open_llm: OpenLLM) -> None:
    llm = open_llm(enable_lora=True)
    [lora] = requests(adapters[:1])
    params = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=8, ignore_eos=True)
    [three] = llm.generate(PROMPTS[0], params, lora_request=lora, use_tqdm=False)
    single = SamplingParams(temperature=1.0, seed=4, max_tokens=8, ignore_eos=True)
    [second] = llm.generate(PROMPTS[0], single, lora_request=lora, use_tqdm=False)
    assert three.outputs[1].token_ids == tokens(second)


def test_slots_in_bf16_change_no_bit_of_an_adapter_that_was_saved_so(open_llm: OpenLLM) -> None:
    shipped = LoRARequest("support", 1, "shop-lora-support")
    everything = [shipped, None] * 2
    answers = []
    for lora_dtype in ("float32", "bfloat16"):
        llm = open_llm(enable_lora=True, lora_dtype=lora_dtype)
        answers.append(llm.generate(PROMPTS, GREEDY, lora_request=everything, use_tqdm=False))
    for wide, narrow in zip(*answers, strict=True):
        assert tokens(wide) == tokens(narrow)
        assert wide.outputs[0].logprobs == narrow.outputs[0].logprobs
        assert wide.prompt_logprobs == narrow.prompt_logprobs
