"""Two kinds of tokenizer, trained in milliseconds, and an engine with random weights behind them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from engine import LLM
from engine.frontend.tokenizer import Tokenizer

TEXTS = [
    "hello world, the cat sat on the mat",
    "a stop word and a stop string",
    "你好，世界",
    "été 😀🎉 ünï",
] * 4
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONFIG = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": CHAT_TEMPLATE}


@cache
def byte_level_json() -> str:
    """Byte-level BPE, as GPT-2's: ids 0 and 1 are <s> and </s>, then all 256 bytes, then merges."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=320,
            initial_alphabet=alphabet,
            special_tokens=["<s>", "</s>", "<|user|>", "<|assistant|>"],
            show_progress=False,
        ),
    )
    return backend.to_str()


@cache
def sentencepiece_json() -> str:
    """Llama 2's style: "▁" marks a space, unknown characters fall back to byte tokens, <s> goes first."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Backend(models.BPE(unk_token="<unk>", fuse_unk=True))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    ascii_texts = [text for text in TEXTS if text.isascii()]
    special = ["<unk>", "<s>", "</s>", *byte_tokens]
    trained.train_from_iterator(
        ascii_texts, trainers.BpeTrainer(vocab_size=340, special_tokens=special, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    backend = Backend(
        models.BPE(model["vocab"], merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return backend.to_str()


@pytest.fixture
def byte_level() -> Tokenizer:
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    return Tokenizer(
        Backend.from_str(byte_level_json()), named_tokens=named, chat_templates={"default": CHAT_TEMPLATE}
    )


@pytest.fixture
def sentencepiece() -> Tokenizer:
    return Tokenizer(
        Backend.from_str(sentencepiece_json()), named_tokens={"bos_token": "<s>", "eos_token": "</s>"}
    )


@pytest.fixture(params=["byte_level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama without weights, with the byte-level tokenizer and a padded vocabulary."""
    folder = tmp_path_factory.mktemp("tiny")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 328,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(byte_level_json())
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def settings(model_dir: Path) -> dict[str, Any]:
    """Engine arguments for the tiny model; every invariant of the core is checked after every step."""
    torch.set_num_threads(1)
    return {
        "model": str(model_dir),
        "load_format": "dummy",
        "device": "cpu",
        "block_size": 4,
        "num_gpu_blocks_override": 256,
        "max_num_seqs": 64,
        "debug_checks": True,
    }


@pytest.fixture
def make_llm(settings: dict[str, Any]) -> Iterator[Callable[..., LLM]]:
    llms: list[LLM] = []

    def make(**overrides: Any) -> LLM:
        llms.append(LLM(**{**settings, **overrides}))
        return llms[-1]

    yield make
    for llm in llms:
        llm.shutdown()


@pytest.fixture
def llm(make_llm: Callable[..., LLM]) -> LLM:
    return make_llm()
