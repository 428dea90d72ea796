"""Qwen2 in a cache of five blocks: swapping, priorities, drafts, grammars and aborts, each step checked.

head_dim is a multiple of 16, so the C++ kernels run and a request gives the same bits alone and in a batch. Other
widths fall back to torch, whose sums depend on the shape of the batch: logits differ by 2e-7, and a near tie can flip.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, SamplingParams
from engine.sampling_params import StructuredOutputsParams
from kernels.cpu import build
from tests.engine.test_everything_at_once import PRICE, ROOT, SCHEMA, Ask, Crowd, alone

SHOP = ROOT / "engine/zoo/models/shop"
DFA = {"structured_outputs_config": {"backend": "dfa"}, "load_format": "dummy"}
STRUCTURES: list[dict[str, Any] | None] = [
    None,
    None,
    {"regex": PRICE},
    {"regex": "[ab]{10,60}"},
    {"choice": ["yes", "no"]},
    {"json": SCHEMA},
]
WORDS = (
    "the a book price yen stars title of in on shop good new old red blue tale two cities map river".split()
)
needs_cpp = pytest.mark.skipif(build.load_library().problem is not None, reason="no C++ kernels here")


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny Qwen2's config and the tokenizer of `shop`."""
    folder = tmp_path_factory.mktemp("qwen2")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(SHOP / name, folder / name)
    shop = json.loads((SHOP / "config.json").read_text())
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": shop["vocab_size"],
        "eos_token_id": shop["eos_token_id"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def plain(qwen: Path) -> Iterator[LLM]:
    with LLM(str(qwen), max_model_len=120, **DFA) as llm:
        yield llm


def random_asks(rng: random.Random, count: int) -> list[Ask]:
    shared = [rng.choice(WORDS) for _ in range(30)]
    asks = []
    for index in range(count):
        words = [*shared[: rng.randint(5, 30)], *(rng.choice(WORDS) for _ in range(rng.randint(0, 6)))]
        structure = rng.choice(STRUCTURES)
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.0, 0.7, 1.0]),
            seed=index,
            max_tokens=rng.choice([12, 50, 70]),
            ignore_eos=True,
            logprobs=rng.choice([None, 1]),
            structured_outputs=structure and StructuredOutputsParams(**structure),
        )
        asks.append(Ask(" ".join(words), params, None, rng.choice([0, 0, 1, 2])))
    return asks


@needs_cpp
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(s, marks=pytest.mark.slow) for s in range(4, 60))]
)
def test_requests_in_a_tight_cache_give_what_they_give_alone(qwen: Path, plain: LLM, seed: int) -> None:
    rng = random.Random(seed)
    drafts = {"method": "ngram", "num_speculative_tokens": 3} if seed % 3 == 2 else None
    asks = random_asks(rng, 16)
    with LLM(
        str(qwen),
        max_model_len=120,
        block_size=32,
        num_gpu_blocks_override=5,
        max_num_seqs=2,
        max_num_batched_tokens=33,
        scheduling_policy="priority",
        preemption_mode="swap",
        swap_space=rng.choice([0.0005, 0.01]),
        speculative_config=drafts,
        debug_checks=True,
        **DFA,
    ) as llm:
        crowd = Crowd(llm, {None: None}, seed)
        crowd.run(asks)
    assert crowd.num_masked
    if seed == 0:  # not every seed preempts
        assert crowd.num_preemptions and crowd.num_swapped
    for index, ask in enumerate(asks):
        if str(index) not in crowd.aborted:
            found, expected = crowd.finished[str(index)], alone(plain, ask, {None: None})
            assert found.error is None
            assert [c.token_ids for c in found.outputs] == [c.token_ids for c in expected.outputs], ask
            assert [c.finish_reason for c in found.outputs] == [c.finish_reason for c in expected.outputs]
