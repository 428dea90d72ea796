"""A request computes the same bits alone and in company (fp32 on a CPU)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from engine.config import EngineArgs, ModelConfig
from engine.models.hf_config import load_model_config
from engine.models.loader import load_model
from kernels.cpu import build
from tests.differential.harness import PagedModel, Sequence

SHOP = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
}
"""The shape of the shipped model, with fewer layers."""


@pytest.fixture(params=[1, 2], ids=["one_thread", "two_threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def run(
    paged: PagedModel, sequence: Sequence, others: list[tuple[Sequence, int]], place: int
) -> list[Tensor]:
    """Prefill 20 tokens and decode 3 of `sequence`, each step with the others around it."""
    logits = []
    for num_tokens in (20, 1, 1, 1):
        work = list(others)
        work.insert(place, (sequence, num_tokens))
        logits.append(paged.step(work)[place])
        others = [(Sequence(other.tokens, other.num_computed, other.blocks), 1) for other, _ in others]
    return logits


has_cpp = build.load_library().problem is None
needs_cpp = pytest.mark.skipif(not has_cpp, reason="no C++ kernels here")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, ModelConfig]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "config.json").write_text(json.dumps(SHOP))
    config = load_model_config(EngineArgs(model=str(folder), load_format="dummy", device="cpu"))
    return load_model(config, "cpu"), config


@pytest.mark.skipif(
    not (has_cpp or torch.backends.mkldnn.is_available()), reason="needs our matrix product or oneDNN's"
)
@pytest.mark.parametrize("backend", ["sdpa", pytest.param("cpu", marks=needs_cpp)])
def test_a_request_gives_the_same_bits_alone_and_among_64_others(
    shop: tuple[torch.nn.Module, ModelConfig], backend: str, threads: int
) -> None:
    model, config = shop
    rng = random.Random(0)

    def sequence() -> Sequence:
        return Sequence([rng.randrange(SHOP["vocab_size"]) for _ in range(60)])

    ours = sequence()
    alone = run(PagedModel(model, config, backend), Sequence(ours.tokens), [], 0)
    for num_others, place in ((1, 0), (2, 1), (64, 0), (64, 40)):
        others = [(sequence(), rng.choice((1, 2, 7, 19))) for _ in range(num_others)]
        paged = PagedModel(model, config, backend, num_blocks=2048)
        together = run(paged, Sequence(ours.tokens), others, place)
        for step, (one, other) in enumerate(zip(alone, together, strict=True)):
            assert torch.equal(one, other), f"{num_others} others, step {step}"


@needs_cpp
@pytest.mark.parametrize("cut", [(1, 7, 19, 33), (33, 27), (20, 20, 20), (1,) * 60], ids=str)
def test_a_prompt_in_chunks_gives_the_logits_and_the_cache_of_one_piece(
    shop: tuple[torch.nn.Module, ModelConfig], cut: tuple[int, ...], threads: int
) -> None:
    """The C++ kernels agree bit for bit: only the position decides the order of every sum."""
    model, config = shop
    rng = random.Random(1)
    prompt = [rng.randrange(SHOP["vocab_size"]) for _ in range(60)]
    whole, pieces = PagedModel(model, config, "cpu"), PagedModel(model, config, "cpu")
    (expected,) = whole.step([(Sequence(prompt), 60)])
    sequence = Sequence(prompt)
    found = torch.cat([pieces.step([(sequence, num_tokens)])[0] for num_tokens in cut])
    assert torch.equal(found, expected)
    assert torch.equal(pieces.kv_cache, whole.kv_cache)
