"""Reading config.json: both styles, every architecture, and a clear refusal of what cannot work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.config import ConfigError, EngineArgs, RopeConfig
from engine.models.hf_config import load_model_config, parse_config
from tests.models.checkpoints import LLAMA, read_config, write_checkpoint, write_config

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def parse(**changes: Any) -> Any:
    return parse_config({key: value for key, value in {**LLAMA, **changes}.items() if value is not ...})


def test_old_and_new_style_rope_mean_the_same() -> None:
    old = parse(rope_theta=500000.0, rope_scaling=LLAMA3_SCALING)
    new = parse(rope_theta=..., rope_parameters={"rope_theta": 500000.0, **LLAMA3_SCALING})
    assert old == new
    assert old.rope == RopeConfig(500000.0, LLAMA3_SCALING)


def test_older_scaling_says_type_instead_of_rope_type() -> None:
    assert parse(rope_scaling={"type": "linear", "factor": 2.0}).rope == RopeConfig(
        10000.0, {"rope_type": "linear", "factor": 2.0}
    )


def test_plain_rope_in_every_spelling() -> None:
    for changes in (
        {},
        {"rope_scaling": None},
        {"rope_scaling": {"rope_type": "default"}},
        {"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        {"rope_theta": ...},
    ):
        assert parse(**changes).rope == RopeConfig(10000.0)


LONG = {"short_factor": [1.0, 1.0], "long_factor": [2.0, 4.0]}


@pytest.mark.parametrize(
    ("scaling", "asked", "served", "chosen"),
    [
        ({"rope_type": "yarn", "factor": 4.0}, None, 256, {}),
        ({"rope_type": "yarn", "original_max_position_embeddings": 16}, None, 64, {"factor": 4.0}),
        ({"rope_type": "dynamic", "factor": 4.0}, None, 64, {}),
        ({"rope_type": "dynamic", "factor": 4.0}, 64, 64, {}),
        ({"rope_type": "dynamic", "factor": 4.0}, 100, 100, {"served_length": 100}),
        ({"rope_type": "dynamic", "factor": 4.0}, 1000, 256, {"served_length": 256}),
        (
            {"rope_type": "longrope", "original_max_position_embeddings": 16, **LONG},
            None,
            16,
            {"is_long": False},
        ),
        (
            {"rope_type": "longrope", "original_max_position_embeddings": 16, **LONG},
            16,
            16,
            {"is_long": False},
        ),
        (
            {"rope_type": "longrope", "original_max_position_embeddings": 16, **LONG},
            17,
            64,
            {"is_long": True},
        ),
    ],
)
def test_max_model_len_chooses_the_context_of_a_scaling_rule(
    scaling: dict[str, Any], asked: int | None, served: int, chosen: dict[str, Any], tmp_path: Path
) -> None:
    write_config(tmp_path, rope_scaling=scaling)
    config = read_config(tmp_path, max_model_len=asked, load_format="dummy")
    assert config.max_position_embeddings == served
    assert {key: config.rope.scaling[key] for key in chosen} == chosen
    assert ("served_length" in config.rope.scaling) == ("served_length" in chosen)


def test_frequencies_that_max_model_len_chooses_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    write_config(tmp_path, rope_scaling={"rope_type": "dynamic", "factor": 4.0})
    prints = [
        read_config(tmp_path, max_model_len=length, load_format="dummy").fingerprint
        for length in (32, 64, 65, 66)
    ]
    assert prints[0] == prints[1] and len(set(prints)) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope_scaling": {"rope_type": "mrope", "factor": 4.0}},
            "rope_type 'mrope' is not supported; supported: default, linear, llama3, yarn, dynamic, longrope$",
        ),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, r"rope_type \['yarn'\] is not supported"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 0}},
            "'linear' needs the number factor, and factor is 0",
        ),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope_type 'dynamic' needs the number factor"),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [1.0]}},
            "needs long_factor with 2 numbers, one for each pair of dimensions",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "needs the number low_freq_factor, high_freq",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "per layer type are not supported"),
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "GPT2LMHeadModel is not supported; supported: LlamaForCausalLM, .*Mis",
        ),
        ({"architectures": ...}, "no architecture is named; supported: LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"hidden_size": ...}, "'hidden_size' is missing"),
        ({"num_hidden_layers": "6"}, "'num_hidden_layers' is '6', expected a positive integer"),
        ({"vocab_size": 0}, "'vocab_size' is 0, expected a positive integer"),
        (
            {"num_key_value_heads": 3},
            r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)",
        ),
        ({"head_dim": 5}, r"head_dim \(5\) must be even"),
        (
            {"quantization_config": {"quant_method": "aqlm"}},
            "'aqlm' is not supported; supported are .* awq, gptq",
        ),
        ({"quantization_config": {"quant_method": "awq", "bits": 3}}, "bits = 3 is not supported"),
    ],
)
def test_what_cannot_work_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(**changes)


def test_missing_head_counts_and_sizes_follow_from_the_others() -> None:
    config = parse(num_key_value_heads=..., head_dim=...)
    assert (config.num_key_value_heads, config.head_dim) == (4, 4)
    assert parse(head_dim=8).head_dim == 8


def test_biases_are_where_each_architecture_has_them() -> None:
    def biases(architecture: str, **changes: Any) -> tuple[bool, bool, bool]:
        config = parse(architectures=[architecture], **changes)
        return config.attention_bias, config.attention_output_bias, config.mlp_bias

    assert biases("LlamaForCausalLM") == (False, False, False)
    assert biases("LlamaForCausalLM", attention_bias=True, mlp_bias=True) == (True, True, True)
    assert biases("Qwen2ForCausalLM") == (True, False, False)
    assert biases("Qwen3ForCausalLM") == (False, False, False)
    assert biases("Qwen3ForCausalLM", attention_bias=True) == (True, True, False)
    assert biases("MistralForCausalLM") == (False, False, False)


def test_only_qwen3_norms_its_heads() -> None:
    assert parse(architectures=["Qwen3ForCausalLM"]).qk_norm
    assert not parse(architectures=["Qwen2ForCausalLM"]).qk_norm


def test_sliding_windows_per_layer() -> None:
    def windows(architecture: str, **changes: Any) -> tuple[int | None, ...]:
        return parse(architectures=[architecture], **changes).sliding_window

    assert windows("LlamaForCausalLM", sliding_window=8, use_sliding_window=False) == (None, None)
    assert windows("LlamaForCausalLM", sliding_window=64) == (None, None)  # of 64 positions
    for changes in ({}, {"use_sliding_window": True}):
        with pytest.raises(ConfigError, match="sliding_window 8 is not supported for Llama"):
            windows("LlamaForCausalLM", sliding_window=8, **changes)
    assert windows("MistralForCausalLM", sliding_window=8) == (8, 8)
    assert windows("MistralForCausalLM", sliding_window=None) == (None, None)
    assert windows("MistralForCausalLM") == (4096, 4096)
    assert windows("Qwen2ForCausalLM", sliding_window=8) == (None, None)
    assert windows("Qwen2ForCausalLM", sliding_window=8, use_sliding_window=True) == (None, None)
    qwen = {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}
    assert windows("Qwen2ForCausalLM", **qwen) == (None, 8)
    layer_types = ["sliding_attention", "full_attention"]
    assert windows("Qwen3ForCausalLM", **qwen, layer_types=layer_types) == (8, None)
    assert windows("MistralForCausalLM", sliding_window=8, layer_types=layer_types) == (8, None)
    moe = {"num_experts": 2, "num_experts_per_tok": 1, "sliding_window": 8}
    assert windows("Qwen3MoeForCausalLM", **moe) == (None, None)
    assert windows("Qwen3MoeForCausalLM", **moe, use_sliding_window=True) == (8, 8)
    for architecture, changes, message in (
        (
            "Qwen3MoeForCausalLM",
            {**moe, "use_sliding_window": True, "max_window_layers": 1},
            "max_window_layers 1",
        ),
        (
            "Qwen3MoeForCausalLM",
            {**moe, "use_sliding_window": True, "layer_types": layer_types},
            "layer_types",
        ),
        ("MixtralForCausalLM", {"sliding_window": 8, "layer_types": layer_types}, "layer_types"),
        ("MistralForCausalLM", {"sliding_window": 8, "layer_types": layer_types[:1]}, "names 1 layer"),
        (
            "MistralForCausalLM",
            {"sliding_window": None, "layer_types": layer_types},
            "there is no sliding_window",
        ),
        (
            "MistralForCausalLM",
            {"layer_types": ["chunked_attention"] * 2},
            "'layer_types' is .* expected a list",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            windows(architecture, **changes)


def test_auto_dtype_is_float32_on_a_cpu_and_the_checkpoints_own_elsewhere(tmp_path: Path) -> None:
    for key, value in (("dtype", "bfloat16"), ("torch_dtype", "torch.bfloat16")):
        folder = write_config(tmp_path / key, **{key: value})
        assert read_config(folder, load_format="dummy").dtype == "float32"
        assert read_config(folder, load_format="dummy", device="cuda").dtype == "bfloat16"
        assert read_config(folder, load_format="dummy", dtype="float16").dtype == "float16"
    with pytest.raises(ConfigError, match="unknown dtype 'int8'; choose auto, float32, bfloat16, float16"):
        read_config(folder, load_format="dummy", dtype="int8")


def test_end_ids_come_from_both_files_without_repeats(tmp_path: Path) -> None:
    write_config(tmp_path, eos_token_id=[7, 2])
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 9]}')
    assert read_config(tmp_path, load_format="dummy").eos_token_ids == (7, 2, 9)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 5}')
    assert read_config(tmp_path, load_format="dummy").eos_token_ids == (7, 2, 5)
    (tmp_path / "generation_config.json").unlink()
    write_config(tmp_path, eos_token_id=None)
    assert read_config(tmp_path, load_format="dummy").eos_token_ids == ()


def test_overrides_replace_values_and_merge_objects(tmp_path: Path) -> None:
    write_config(tmp_path, rope_scaling=LLAMA3_SCALING)
    config = read_config(
        tmp_path,
        load_format="dummy",
        hf_overrides={"rope_scaling": {"factor": 2.0}, "max_position_embeddings": 32},
    )
    assert config.max_position_embeddings == 32
    assert config.rope.scaling == {**LLAMA3_SCALING, "factor": 2.0}


def test_a_missing_folder_and_a_misspelt_name_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder .*/nowhere"):
        read_config(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"no model 'shopp'.* otherwise give a folder"):
        load_model_config(EngineArgs(model="shopp"))
    with pytest.raises(ConfigError, match="name is empty"):
        load_model_config(EngineArgs(model=""))
    file = tmp_path / "weights.safetensors"
    file.touch()
    with pytest.raises(ConfigError, match="is a file; give the folder"):
        read_config(file)


def test_a_shipped_model_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.zoo.registry.MODELS", tmp_path)
    write_checkpoint(tmp_path / "tiny")
    assert load_model_config(EngineArgs(model="tiny")).path == tmp_path / "tiny"
    with pytest.raises(ConfigError, match="no model 'tinny'; did you mean 'tiny'?"):
        load_model_config(EngineArgs(model="tinny"))


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config.json"):
        read_config(tmp_path)
    for content in ('{"hidden_size": 4', "", "[1, 2]", b"\xff\xfe\x00"):
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "config.json").write_bytes(data)
        with pytest.raises(ConfigError, match=r"config\.json (is not valid JSON|holds a list)"):
            read_config(tmp_path)


def test_a_fingerprint_survives_a_move_and_changes_with_weights_dtype_and_overrides(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path / "a")
    original = read_config(first).fingerprint
    moved = Path(shutil.copytree(first, tmp_path / "b"))
    assert read_config(moved).fingerprint == original
    assert read_config(moved, dtype="bfloat16").fingerprint != original
    assert read_config(moved, hf_overrides={"rms_norm_eps": 1e-3}).fingerprint != original
    weights = moved / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert read_config(moved).fingerprint != original


def test_a_fingerprint_of_random_weights_is_their_seed(tmp_path: Path) -> None:
    write_config(tmp_path)
    prints = [read_config(tmp_path, load_format="dummy", seed=seed).fingerprint for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]
    assert len(prints[0]) == 32


def test_reading_a_config_loads_no_tensors_and_no_transformers(tmp_path: Path) -> None:
    import subprocess
    import sys

    write_checkpoint(tmp_path)
    code = (
        "import sys; from engine.config import EngineArgs; from engine.models.hf_config import load_model_config;"
        f"load_model_config(EngineArgs(model={str(tmp_path)!r}, device='cpu'));"
        "print([name for name in ('torch', 'transformers', 'huggingface_hub') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout.replace("'", '"')) == []
