"""Shapes against published figures of the models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.config import ConfigError
from engine.sim.hardware import GPUS, get_hardware
from engine.sim.models import MODELS, get_model

ROOT = Path(__file__).resolve().parents[2]

PUBLISHED = {
    # Totals of the checkpoints' safetensors headers, as their Hugging Face pages show them.
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counted_parameters_are_the_published_ones_to_the_last(name: str) -> None:
    assert get_model(name).num_params == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("mixtral-8x7b", 46.7e9, 12.9e9),  # Jiang et al. 2024, section 1: 47 B and 13 B
        ("qwen3-30b-a3b", 30.5e9, 3.3e9),  # model card
        ("qwen3-235b-a22b", 235e9, 22e9),  # model card
        ("deepseek-v3", 671e9, 37e9),  # DeepSeek-V3 report, abstract
    ],
)
def test_active_parameters_of_mixtures_are_as_published(name: str, total: float, active: float) -> None:
    assert get_model(name).num_params == pytest.approx(total, rel=0.01)
    assert get_model(name).active_params == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("llama-2-7b", 512),  # 2 x 32 layers x 32 heads x 128 x 2 bytes
        ("llama-2-13b", 800),  # Kwon et al. 2023, section 3: 800 KB for OPT-13B, the same 40 x 5120
        ("llama-3-8b", 128),
        ("llama-3-70b", 320),
        ("deepseek-v3", 68.625),  # DeepSeek-V3: 70.272 KB with 512 + 64 numbers in 61 layers
        ("qwen2.5-7b", 56),
    ],
)
def test_kv_bytes_per_token_in_16_bits(name: str, kib: float) -> None:
    assert get_model(name).kv_elements_per_token() * 2 / 1024 == kib


@pytest.mark.parametrize("name", ["shop", "shop-draft"])
def test_our_models_have_the_shape_of_their_config(name: str) -> None:
    config = json.loads((ROOT / get_model(name).repository / "config.json").read_text())
    _check_shape(name, config)


def test_the_dummy_has_the_shape_of_the_benchmarks() -> None:
    from app.bench.models import DUMMIES

    _check_shape("dummy-386m", DUMMIES["dummy-386m"])


def _check_shape(name: str, config: dict[str, object]) -> None:
    shape = get_model(name)
    assert (
        shape.num_layers,
        shape.hidden_size,
        shape.intermediate_size,
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        shape.vocab_size,
        shape.tie_word_embeddings,
    ) == tuple(
        config[key]
        for key in (
            "num_hidden_layers",
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "vocab_size",
            "tie_word_embeddings",
        )
    )


def test_kv_heads_are_divided_among_gpus_until_each_has_one() -> None:
    shape = get_model("llama-3-70b")
    assert [shape.kv_elements_per_token(tp) // (80 * 2 * 128) for tp in (1, 2, 8, 16)] == [8, 4, 1, 1]


def test_every_gpu_keeps_the_whole_latent_vector_of_mla() -> None:
    shape = get_model("deepseek-v3")
    assert shape.kv_elements_per_token(8) == shape.kv_elements_per_token(1)


def test_a_window_bounds_the_kv_of_a_sequence() -> None:
    assert get_model("mistral-7b").kv_tokens_held(32_768) == 4096
    assert get_model("llama-3-8b").kv_tokens_held(8192) == 8192


@pytest.mark.parametrize(
    ("lookup", "wrong", "right"),
    [
        (get_model, "llama3-70b", "llama-3-70b"),
        (get_hardware, "h1000", "h100"),
        (get_hardware, "a100-90", "a100-80"),
    ],
)
def test_an_unknown_name_gets_the_closest_one_and_the_list(lookup: object, wrong: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{right}'.*known: ") as caught:
        lookup(wrong)
    assert all(name in str(caught.value) for name in (MODELS if lookup is get_model else GPUS))


def test_names_are_found_whatever_their_case_and_by_their_repository() -> None:
    assert get_model("Meta-Llama/Llama-3.1-8B").name == "llama-3.1-8b"
    assert get_hardware("H100-SXM").name == "h100"


@pytest.mark.parametrize(
    ("name", "dtype", "ridge"), [("h100", "bfloat16", 295), ("a100-80", "bfloat16", 153), ("l4", "fp8", 808)]
)
def test_ridge_points_follow_from_the_datasheets(name: str, dtype: str, ridge: float) -> None:
    assert get_hardware(name).ridge(dtype) == pytest.approx(ridge, abs=1)
