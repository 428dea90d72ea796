"""Weights get where they belong, or the error says which do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import ConfigError
from engine.layers.linear import Linear
from engine.models.loader import load_model
from tests.models.checkpoints import random_weights, read_config, write_checkpoint, write_config

if TYPE_CHECKING:
    from kernels.cpu.linear import PackedWeight


def load(folder: Path, **args: str) -> torch.nn.Module:
    return load_model(read_config(folder, **args), "cpu")


def dense(weight: torch.Tensor | PackedWeight) -> torch.Tensor:
    """The matrix, whatever layout the kernels want it in."""
    is_plain = isinstance(weight, torch.Tensor) and not weight.is_mkldnn
    return weight if is_plain else weight.to_dense()


@pytest.mark.parametrize("num_shards", [1, 3])
def test_every_tensor_of_the_checkpoint_lands_in_its_place(tmp_path: Path, num_shards: int) -> None:
    write_checkpoint(tmp_path, num_shards=num_shards, attention_bias=True)
    weights = random_weights(tmp_path)
    model = load(tmp_path)
    checked = 0
    for name, module in model.named_modules():
        parts = module.part_names(name) if isinstance(module, Linear) else [name]
        for kind in ("weight", "bias"):
            stored = [weights[f"{part}.{kind}"] for part in parts if f"{part}.{kind}" in weights]
            if stored:
                assert torch.equal(dense(getattr(module, kind)), torch.cat(stored)), f"{name}.{kind}"
                checked += len(stored)
    assert checked == len(weights)


def test_a_merged_projection_stacks_query_key_value_in_this_order(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path))
    stored = load_file(tmp_path / "model.safetensors")
    prefix = "model.layers.1.self_attn"
    expected = torch.cat([stored[f"{prefix}.{part}_proj.weight"] for part in "qkv"])
    assert torch.equal(dense(model.get_submodule(f"{prefix}.qkv_proj").weight), expected)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("asked", ["float32", "bfloat16", "float16"])
def test_any_stored_float_type_is_converted_to_the_one_asked_for(
    tmp_path: Path, stored: torch.dtype, asked: str
) -> None:
    write_checkpoint(tmp_path, dtype=stored)
    model = load(tmp_path, dtype=asked)
    expected = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"].to(
        getattr(torch, asked)
    )
    assert torch.equal(model.get_submodule("model.embed_tokens").weight, expected)


def test_a_tied_head_needs_no_tensor_and_a_stored_head_that_differs_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in vLLM and transformers, which compare the two tensors."""
    write_checkpoint(tmp_path, tie_word_embeddings=True)
    stored = load_file(tmp_path / "model.safetensors")
    embedding = stored["model.embed_tokens.weight"]
    assert "lm_head.weight" not in stored
    for head in (None, embedding.clone()):
        save_file(
            stored if head is None else {**stored, "lm_head.weight": head}, tmp_path / "model.safetensors"
        )
        model = load(tmp_path)
        assert model.lm_head.is_tied and torch.equal(dense(model.lm_head.weight), embedding)
    assert not caplog.messages
    other = embedding.clone()
    other[-1, -1] += 1
    save_file({**stored, "lm_head.weight": other}, tmp_path / "model.safetensors")
    assert torch.equal(dense(load(tmp_path).lm_head.weight), other)
    assert "holds another lm_head.weight, which is used" in caplog.text


def test_missing_unexpected_and_misshapen_tensors_are_listed_by_name_and_shape(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    weights["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(16)
    weights["model.norm.weight"] = torch.zeros(8)
    weights["lm_head.weight"] = torch.zeros(40, 16, dtype=torch.int32)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError) as error:
        load(tmp_path)
    for part in (
        "missing: model.layers.0.mlp.up_proj.weight [24, 16]",
        "unexpected: model.layers.0.self_attn.q_proj.bias [16]",
        "wrong shape: model.norm.weight [8], model [16]",
        "wrong type: lm_head.weight I32, expected floating point",
    ):
        assert part in str(error.value)


def test_long_lists_of_faults_are_cut(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    save_file({"other.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="missing: .* and 16 more; unexpected: other.weight"):
        load(tmp_path)


def test_stored_rope_frequencies_are_ignored(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(2)
    save_file(weights, tmp_path / "model.safetensors")
    load(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_file_that_is_cut_short_is_refused_when_the_config_is_read(tmp_path: Path, keep: int) -> None:
    write_checkpoint(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ConfigError, match=r"model\.safetensors .*(cut short|damaged).*fetch it again"):
        read_config(tmp_path)


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    for content in (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        b"\x02\0\0\0\0\0\0\0[]",
        b"\x05" + 60 * b"\0",
    ):
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(ConfigError, match="fetch it again"):
            read_config(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, num_shards=3)
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ConfigError, match="misses 1 of 3 weight files.*model-00002-of-00003.safetensors"):
        read_config(tmp_path)


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, num_shards=2)
    index = tmp_path / "model.safetensors.index.json"
    for content, message in (("{", "not valid JSON"), ("{}", "has no weight_map")):
        index.write_text(content)
        with pytest.raises(ConfigError, match=f"index.json.*{message}"):
            read_config(tmp_path)


def test_files_beside_the_index_are_not_part_of_the_checkpoint(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, num_shards=2)
    save_file({"stray": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    load(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes((tmp_path / "a.safetensors").read_bytes())
    with pytest.raises(ConfigError, match="is in a.safetensors and in b.safetensors"):
        read_config(tmp_path)


def test_pickled_weights_are_refused_with_the_way_to_convert_them(tmp_path: Path) -> None:
    write_config(tmp_path)
    torch.save({"x": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pickles \(pytorch_model.bin\).*save_pretrained"):
        read_config(tmp_path)


def test_a_folder_without_weights_says_so_and_runs_with_random_ones(tmp_path: Path) -> None:
    write_config(tmp_path)
    with pytest.raises(ConfigError, match="holds no weights.*load_format='dummy'"):
        read_config(tmp_path)
    models = [load_model(read_config(tmp_path, load_format="dummy", seed=seed), "cpu") for seed in (3, 3, 4)]
    same, again, other = (model.get_submodule("model.embed_tokens").weight for model in models)
    assert torch.equal(same, again)
    assert not torch.equal(same, other)
    assert (models[0].get_submodule("model.norm").weight == 1).all()


def test_a_loaded_model_keeps_no_gradients_and_is_in_inference_mode(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path))
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_the_names_a_model_asks_for_are_those_of_the_format(tmp_path: Path) -> None:
    names = set(random_weights(write_config(tmp_path, num_hidden_layers=1)))
    layer = "model.layers.0"
    assert names == {
        "model.embed_tokens.weight",
        *(f"{layer}.self_attn.{part}_proj.weight" for part in "qkvo"),
        *(f"{layer}.mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
        f"{layer}.input_layernorm.weight",
        f"{layer}.post_attention_layernorm.weight",
        "model.norm.weight",
        "lm_head.weight",
    }


def test_loading_brings_in_neither_transformers_nor_the_compiler(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    code = (
        "import sys; from engine.config import EngineArgs; from engine.models.hf_config import load_model_config;"
        "from engine.models.loader import load_model; from engine.attention.backend import get_backend;"
        f"config = load_model_config(EngineArgs(model={str(tmp_path)!r}, device='cpu'));"
        "load_model(config, 'cpu'); get_backend(None, 'cpu', None);"
        "print(*[name for name in ('transformers', 'torch._dynamo', 'sympy', 'triton') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
