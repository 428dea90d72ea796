"""Tiny models of many shapes on crowded engines: each request gives the logprobs that it gives alone, bit for bit.

Tokens alone would hide most errors: logits that differ by 2e-7 flip a token once in 20,000 requests. The C++ kernels
compute every shape in an order that depends only on the position, so any difference is an error.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import LLM, SamplingParams
from engine.lora.request import LoRARequest
from engine.outputs import RequestOutput
from engine.sampling_params import StructuredOutputsParams
from kernels.cpu import build
from tests.engine.test_everything_at_once import PRICE, ROOT, SCHEMA, Ask, Crowd, alone
from tests.lora.peft_files import write_adapter
from tests.seeds import seeds

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)  # torch's sums depend on how a prompt is cut

SHOP = ROOT / "engine/zoo/models/shop"
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SHAPES: dict[str, tuple[str, int, int, int, dict[str, Any]]] = {
    "qwen2": ("Qwen2", 4, 2, 16, {}),
    "qwen2, heads of 8": ("Qwen2", 4, 2, 8, {}),
    "qwen3, heads of 24, groups of 5": ("Qwen3", 5, 1, 24, {}),
    "llama, heads of 2, odd width": ("Llama", 6, 2, 2, {"hidden_size": 41, "intermediate_size": 37}),
    "llama, groups of 64": ("Llama", 64, 1, 4, {"hidden_size": 40}),
    "mistral, heads of 12, window": ("Mistral", 4, 2, 12, {"sliding_window": 24}),
    "mixtral, heads of 8": ("Mixtral", 4, 2, 8, EXPERTS),
}
"""Family, query heads, kv heads, head_dim, and what else config.json says."""
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
TIGHT: dict[str, Any] = {
    "block_size": 32,
    "num_gpu_blocks_override": 5,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 33,
    "scheduling_policy": "priority",
    "preemption_mode": "swap",
}
Loras = dict[str | None, LoRARequest | None]


def write_model(shape: str, folder: Path) -> tuple[Path, Loras]:
    """Config of a tiny model, the tokenizer of `shop`, no weights; two adapters, and None for the base model."""
    family, heads, kv_heads, head_dim, overrides = SHAPES[shape]
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(SHOP / name, folder / name)
    shop = json.loads((SHOP / "config.json").read_text())
    config = {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": family.lower(),
        "vocab_size": shop["vocab_size"],
        "eos_token_id": shop["eos_token_id"],
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": 1024,
        "torch_dtype": "float32",
        **overrides,
    }
    (folder / "config.json").write_text(json.dumps(config))
    hidden, loras = config["hidden_size"], Loras({None: None})
    sizes = {"q_proj": (heads * head_dim, hidden), "o_proj": (hidden, heads * head_dim)}
    for index, rank in enumerate((3, 8), start=1):
        generator = torch.Generator().manual_seed(index)
        tensors = {}
        for layer in range(2):
            for name, (rows, columns) in sizes.items():
                prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
                tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, columns, generator=generator) / 9
                tensors[f"{prefix}.lora_B.weight"] = torch.randn(rows, rank, generator=generator) / 3
        names = {"targets": list(sizes), "base_model_name_or_path": str(folder)}
        path = write_adapter(folder / f"adapter{index}", rank=rank, tensors=tensors, **names)
        loras[f"adapter{index}"] = LoRARequest(f"adapter{index}", index, str(path))
    return folder, loras


@dataclass
class Model:
    """One shape on disk."""

    shape: str
    folder: Path
    loras: Loras
    answer: Callable[[Ask, str], RequestOutput]
    """Answers a request alone, with this type of KV cache."""


@pytest.fixture(scope="module", params=SHAPES, ids=lambda name: name.replace(",", "").replace(" ", "_"))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder, loras = write_model(request.param, tmp_path_factory.mktemp("model"))
    with ExitStack() as engines:
        started: dict[str, LLM] = {}

        def answer(ask: Ask, kv_cache_dtype: str) -> RequestOutput:
            if kv_cache_dtype not in started:
                llm = LLM(**settings_of(folder), enable_prefix_caching=False, kv_cache_dtype=kv_cache_dtype)
                started[kv_cache_dtype] = engines.enter_context(llm)
            return alone(started[kv_cache_dtype], ask, loras)

        yield Model(request.param, folder, loras, answer)


def settings_of(folder: Path, grammars: str = "dfa") -> dict[str, Any]:
    return {
        "model": str(folder),
        "load_format": "dummy",
        "max_model_len": 120,
        "enable_lora": True,
        "max_loras": 2,
        "max_lora_rank": 8,
        "structured_outputs_config": {"backend": grammars},
    }


def random_asks(rng: random.Random, count: int, adapters: list[str | None]) -> list[Ask]:
    shared = [rng.choice(WORDS) for _ in range(30)]
    asks = []
    for index in range(count):
        words = [*shared[: rng.randint(5, 30)], *(rng.choice(WORDS) for _ in range(rng.randint(0, 6)))]
        structure = rng.choice(STRUCTURES)
        params = SamplingParams(
            temperature=rng.choice([0.0, 0.0, 0.7, 1.0]),
            repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
            seed=index,
            max_tokens=rng.choice([12, 50, 70]),
            ignore_eos=True,
            logprobs=2,
            prompt_logprobs=rng.choice([None, None, 1]),
            structured_outputs=structure and StructuredOutputsParams(**structure),
        )
        asks.append(Ask(" ".join(words), params, rng.choice(adapters), rng.choice([0, 0, 1, 2])))
    return asks


def assert_each_as_alone(model: Model, asks: list[Ask], seed: int, **settings: Any) -> Crowd:
    base = settings_of(model.folder, settings.pop("grammars", "dfa"))
    with LLM(**base, debug_checks=True, **settings) as llm:
        crowd = Crowd(llm, model.loras, seed)
        crowd.run(asks)
        assert llm.llm_engine.engine_core.scheduler.kv.usage == 0
    for index, ask in enumerate(asks):
        if str(index) not in crowd.aborted:
            expected = model.answer(ask, settings.get("kv_cache_dtype", "auto"))
            found = crowd.finished[str(index)]
            assert found.error is None and expected.error is None
            assert found.outputs == expected.outputs, (settings, ask)
            assert found.prompt_logprobs == expected.prompt_logprobs, (settings, ask)
    return crowd


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in seeds(3, 1))])
def test_five_blocks_two_rows_swapping_priorities_and_grammars(model: Model, seed: int) -> None:
    """The settings in which one request of ten thousand once said another token."""
    rng = random.Random(seed)
    drafts = {"method": "ngram", "num_speculative_tokens": 3} if seed % 3 == 2 else None
    asks = random_asks(rng, 12, list(model.loras) if seed % 2 else [None])
    swap_space = rng.choice([0.0005, 0.01])
    crowd = assert_each_as_alone(model, asks, seed, **TIGHT, swap_space=swap_space, speculative_config=drafts)
    assert crowd.num_masked
    if seed == 0:  # not every seed preempts
        assert crowd.num_preemptions and crowd.num_swapped


def random_settings(rng: random.Random) -> dict[str, Any]:
    """Settings under which requests meet chunks, hits, preemptions, replays and drafts, in any combination."""
    block_size, num_seqs = rng.choice([4, 8, 16, 32]), rng.choice([1, 2, 4, 8])
    drafts = rng.choice([None, None, {"method": "ngram", "num_speculative_tokens": rng.choice([1, 3])}])
    swaps = rng.random() < 0.5
    return {
        "block_size": block_size,
        "num_gpu_blocks_override": 1 + -(-120 // block_size) + rng.choice([0, 1, 120 // block_size]),
        "max_num_seqs": num_seqs,
        "max_num_batched_tokens": num_seqs + rng.choice([0, 5, 25, 120]),
        "long_prefill_token_threshold": rng.choice([0, 0, 9]),
        "scheduling_policy": rng.choice(["fcfs", "priority"]),
        "preemption_mode": "swap" if swaps else "recompute",
        "swap_space": rng.choice([0.0005, 0.01]) if swaps else None,
        "kv_offloading_size": rng.choice([None, None, 0.0005]),
        "enable_prefix_caching": True,
        "speculative_config": drafts,
        "enforce_eager": rng.random() < 0.3,
        "kv_cache_dtype": rng.choice(["auto", "auto", "int8_per_token_head"]),
        "grammars": rng.choice(["dfa", "dfa", "xgrammar"]),
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(4))
def test_any_settings_give_each_request_what_it_gets_alone(model: Model, seed: int) -> None:
    rng = random.Random(f"{model.shape} {seed}")
    settings = random_settings(rng)
    asks = random_asks(rng, 10, list(model.loras))
    if settings["scheduling_policy"] == "fcfs":
        asks = [replace(ask, priority=0) for ask in asks]
    assert_each_as_alone(model, asks, seed, **settings)
