"""Embeddings: the hidden state behind a prompt's last token, whatever else is in the batch or in the cache."""

from __future__ import annotations

import pytest
import torch

from engine import LLM, SamplingParams
from engine.frontend.input_processor import InvalidRequestError

PROMPTS = [list(range(10, 10 + length)) for length in (1, 4, 9, 25)]


def vectors(llm: LLM, prompts: list[list[int]]) -> torch.Tensor:
    return torch.tensor([output.embedding for output in llm.embed(prompts)])


def test_the_next_token_follows_from_the_embedding(llm: LLM) -> None:
    """It is the vector that the output head reads: the head's best token is what the model says next."""
    model = llm.llm_engine.engine_core.executor.worker.model
    said = [
        output.outputs[0].token_ids[0]
        for output in llm.generate(PROMPTS, SamplingParams(max_tokens=1, temperature=0))
    ]
    found = vectors(llm, PROMPTS)
    assert torch.allclose(found.norm(dim=1), torch.ones(len(PROMPTS)), atol=1e-5)
    assert model.compute_logits(found).argmax(-1).tolist() == said


def test_an_embedding_has_the_same_bits_alone_beside_others_and_from_the_cache() -> None:
    with LLM("shop", max_model_len=128) as llm:
        alone = torch.cat([vectors(llm, [prompt]) for prompt in PROMPTS])
        assert torch.equal(vectors(llm, PROMPTS), alone)


def test_prefixes_of_one_text_compute_only_what_is_new(llm: LLM) -> None:
    llm.reset_prefix_cache()
    block_size = llm.llm_engine.engine_core.config.cache.block_size
    text = [7 * i % 50 + 5 for i in range(5 * block_size)]
    for length in range(block_size, len(text) + 1, block_size):
        (output,) = llm.embed([text[:length]])
        assert output.num_cached_tokens == length - block_size


def test_a_shop_sentence_is_nearest_to_its_paraphrase() -> None:
    with LLM("shop", max_model_len=128) as llm:
        price, cost, hello = vectors(llm, ["How much is it?", "What does it cost?", "Hello"])
    assert price @ cost > price @ hello


def test_embeddings_and_completions_share_a_batch(llm: LLM) -> None:
    expected = vectors(llm, PROMPTS)
    stream = llm.stream(PROMPTS[2], SamplingParams(max_tokens=8, temperature=0, ignore_eos=True))
    next(stream)
    assert torch.allclose(vectors(llm, PROMPTS), expected, atol=1e-5)
    assert sum(len(delta.outputs[0].token_ids) for delta in stream) == 7


def test_a_prompt_that_cannot_be_embedded_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="the prompt is empty"):
        llm.embed([[]])
