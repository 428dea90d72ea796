"""Images in prompts: placeholders, content hashes in the prefix cache, and what the encoder computes (E64)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from engine import LLM, SamplingParams
from engine.core.encoder_cache import EncoderCache
from engine.core.request import MultiModalFeature
from engine.frontend.input_processor import InvalidRequestError
from engine.multimodal.encoder import NUM_TOKENS
from tests.core.driver import make_request

GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(
        "shop",
        limit_mm_per_prompt={"image": 2},
        max_model_len=256,
        num_gpu_blocks_override=80,
        debug_checks=True,
    ) as llm:
        yield llm


def picture(seed: int, height: int = 40, width: int = 30) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def ask(*images: np.ndarray, text: str = "What is on the cover? <image>", salt: str | None = None) -> dict:
    prompt = {"prompt": text, "multi_modal_data": {"image": list(images)}}
    return prompt if salt is None else prompt | {"cache_salt": salt}


def encoder_runs(llm: LLM) -> int:
    return llm.llm_engine.engine_core.executor.worker.runner._images._encoder.num_runs


def tokens(llm: LLM, prompt: dict, params: SamplingParams = GREEDY) -> list[int]:
    return llm.generate([prompt], params)[0].outputs[0].token_ids


def test_an_image_is_a_run_of_placeholders_where_the_marker_stands(llm: LLM) -> None:
    (output,) = llm.generate([ask(picture(1), text="Cover: <image> What is this?")], GREEDY)
    before = llm.get_tokenizer().encode("Cover: ")
    after = llm.get_tokenizer().encode(" What is this?", add_special_tokens=False)
    assert output.prompt_token_ids == [*before, *[0] * NUM_TOKENS, *after]


def test_what_the_model_says_depends_on_the_image(llm: LLM) -> None:
    answers = {tuple(tokens(llm, ask(picture(seed)))) for seed in range(6)}
    assert len(answers) > 1


def test_the_same_image_hits_the_prefix_cache_and_another_does_not(llm: LLM) -> None:
    text = "Please look at this picture of a manga cover from our shop: <image> Which one is it, and is it in stock?"
    llm.reset_prefix_cache()
    first = llm.generate([ask(picture(7), text=text)], GREEDY)[0]
    again = llm.generate([ask(picture(7), text=text)], GREEDY)[0]
    other = llm.generate([ask(picture(8), text=text)], GREEDY)[0]
    size = llm.llm_engine.engine_core.config.cache.block_size
    assert again.num_cached_tokens == (len(first.prompt_token_ids) - 1) // size * size
    offset = first.prompt_token_ids.index(0)
    assert other.num_cached_tokens == offset // size * size, "only what stands before the image is shared"
    assert again.outputs[0].token_ids == first.outputs[0].token_ids
    assert first.prompt_token_ids == other.prompt_token_ids, (
        "the tokens do not tell them apart, the hash does"
    )


def test_an_image_is_encoded_once_for_all_prompts(llm: LLM) -> None:
    image, before = picture(20), encoder_runs(llm)
    prompts = [
        ask(image, text=f"{word} <image>", salt=str(i)) for i, word in enumerate(("One", "Two", "Three"))
    ]
    llm.generate(prompts, GREEDY)
    assert encoder_runs(llm) == before + 1
    llm.generate([ask(image, text="Four <image>")], GREEDY)
    assert encoder_runs(llm) == before + 1


def test_a_prefix_hit_behind_the_image_needs_no_encoder(llm: LLM) -> None:
    prompt = ask(picture(30), text="<image>" + " manga" * 40)
    llm.generate([prompt], GREEDY)
    core = llm.llm_engine.engine_core
    queries = []
    update = core.scheduler.update

    def watch(*args):
        queries.append(core.scheduler.stats.encoder_cache_queries)
        return update(*args)

    core.scheduler.update = watch
    try:
        llm.generate([prompt], GREEDY)
    finally:
        core.scheduler.update = update
    assert sum(queries) == 0


@pytest.mark.parametrize("budget", [1, 5, 16, 200])
def test_chunks_that_cut_an_image_change_nothing(llm: LLM, budget: int) -> None:
    prompts = [ask(picture(40), picture(41), text="A <image> B <image> C"), ask(picture(42))]
    expected = [tokens(llm, prompt) for prompt in prompts]
    settings = {
        "max_num_batched_tokens": budget,
        "max_num_seqs": min(budget, 4),
        "enable_prefix_caching": False,
    }
    with LLM(
        "shop", limit_mm_per_prompt={"image": 2}, max_model_len=256, debug_checks=True, **settings
    ) as chunked:
        outputs = chunked.generate(prompts, GREEDY)
        assert [output.outputs[0].token_ids for output in outputs] == expected
        chunked_cache = EncoderCache.of(chunked.llm_engine.engine_core.scheduler)
        assert not chunked_cache._needed_by


def test_a_preempted_request_with_an_image_goes_on_as_if_nothing_had_happened(llm: LLM) -> None:
    prompts = [ask(picture(50 + i), text=f"{'word ' * i}<image> and then") for i in range(4)]
    long = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    expected = [tokens(llm, prompt, long) for prompt in prompts]
    with LLM(
        "shop",
        limit_mm_per_prompt={"image": 2},
        max_model_len=128,
        num_gpu_blocks_override=14,
        debug_checks=True,
    ) as crowded:
        outputs = crowded.generate(prompts, long)
        assert [output.outputs[0].token_ids for output in outputs] == expected
        assert sum(output.metrics.num_preemptions for output in outputs) > 0


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (ask(picture(1), text="no marker"), "0 <image> markers for 1 image"),
        (ask(picture(1), text="<image> <image>"), "2 <image> markers for 1 image"),
        (ask(picture(1), picture(2), picture(3), text="<image>" * 3), "this engine takes 2"),
        (ask(picture(1).astype("float32")), "must be uint8"),
        (ask(picture(1)[:, :, 0]), r"got uint8 \[40, 30\]"),
        ({"prompt_token_ids": [1, 2], "multi_modal_data": {"image": picture(1)}}, "needs a text prompt"),
        ({"prompt": "x", "multi_modal_data": {"audio": 1}}, "multi_modal_data must be"),
    ],
)
def test_what_cannot_be_seen_is_refused(llm: LLM, prompt: dict, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        llm.generate([prompt], GREEDY)


def test_an_engine_without_images_says_how_to_allow_them() -> None:
    with (
        LLM("shop", max_model_len=64) as blind,
        pytest.raises(InvalidRequestError, match="limit_mm_per_prompt={'image': 1}"),
    ):
        blind.generate([ask(picture(1))], GREEDY)


def test_the_cache_drops_the_least_recently_used_that_nobody_needs() -> None:
    cache = EncoderCache(capacity=32)
    a, b, c = (MultiModalFeature(name, 0, 16, None) for name in "abc")
    assert cache.need("r1", a) and cache.need("r2", b) and not cache.need("r2", a)
    cache.let_go("r1", a)
    cache.let_go("r2", b)
    assert cache.need("r3", c), "all three are needed or kept: 48 of 32"
    assert cache.take_dropped() == ["b"], "a is still needed by r2, c by r3"
    assert "a" in cache and cache.num_tokens == 32
    r2, r3 = make_request("r2"), make_request("r3")
    assert not cache.check_integrity([r2, r3], [])
    assert cache.check_integrity([r3], []), "r2 does not run any more and still holds an image"
