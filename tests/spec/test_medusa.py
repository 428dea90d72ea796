"""Medusa checkpoints: the layouts of vLLM and of the Medusa repository, and folders that do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.config import ConfigError, EngineArgs, ModelArgs, ModelConfig
from engine.models.hf_config import load_model_config
from engine.models.medusa import load_medusa, load_medusa_config
from engine.resolve import resolve

HIDDEN, VOCAB, HEADS = 16, 24, 3
FIELDS = {
    "architectures": ["MedusaModel"],
    "model_type": "medusa",
    "hidden_size": HIDDEN,
    "vocab_size": VOCAB,
    "num_heads": HEADS,
    "num_hidden_layers": 2,
    "medusa_fc_bias": True,
}


@pytest.fixture
def target() -> ModelConfig:
    return replace(
        load_model_config(ModelArgs("shop")), hidden_size=HIDDEN, vocab_size=VOCAB, dtype="float32"
    )


@pytest.fixture
def weights() -> dict[str, Tensor]:
    """In vLLM's layout, with a table per head."""
    torch.manual_seed(0)
    found = {f"lm_heads.{head}.weight": torch.randn(VOCAB, HIDDEN) for head in range(HEADS)}
    for head in range(HEADS):
        for layer in range(2):
            found[f"blocks.{head}.layers.{layer}.weight"] = torch.randn(HIDDEN, HIDDEN)
            found[f"blocks.{head}.layers.{layer}.bias"] = torch.randn(HIDDEN)
    return found


def write(folder: Path, tensors: dict[str, Tensor], **fields: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**FIELDS, **fields}))
    save_file(tensors, str(folder / "model.safetensors"))
    return folder


def logits(folder: Path, target: ModelConfig, hidden: Tensor) -> list[Tensor]:
    heads = load_medusa(load_medusa_config(folder.name, folder, target), "cpu")
    table = torch.eye(VOCAB, HIDDEN)
    with torch.inference_mode():
        return heads(hidden, HEADS, lambda states: states @ table.T)


def by_hand(weights: dict[str, Tensor], hidden: Tensor, head: int, table: Tensor) -> Tensor:
    for layer in range(2):
        name = f"blocks.{head}.layers.{layer}"
        step = hidden @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]
        hidden = hidden + step * step.sigmoid()
    return hidden @ table.T


def old_name(name: str) -> str:
    """The Medusa repository's name: a head is a sequence of two residual blocks and its table."""
    kind, head, *rest = name.split(".")
    if kind == "lm_heads":
        return f"medusa_heads.{head}.2.weight"
    return f"medusa_heads.{head}.{rest[1]}.linear.{rest[2]}"


def test_heads_with_tables_of_their_own_compute_the_papers_formula_from_either_layout(
    tmp_path: Path, target: ModelConfig, weights: dict[str, Tensor]
) -> None:
    hidden = torch.randn(4, HIDDEN)
    renamed = {old_name(name): weight for name, weight in weights.items()}
    found = logits(write(tmp_path / "new", weights), target, hidden)
    old = logits(write(tmp_path / "old", renamed), target, hidden)
    for head in range(HEADS):
        expected = by_hand(weights, hidden, head, weights[f"lm_heads.{head}.weight"])
        torch.testing.assert_close(found[head], expected, atol=1e-4, rtol=1e-4)
        assert torch.equal(found[head], old[head])


@pytest.mark.parametrize("name", ["lm_head.weight", "lm_heads.0.weight"])
def test_one_table_serves_all_heads(
    tmp_path: Path, target: ModelConfig, weights: dict[str, Tensor], name: str
) -> None:
    table = weights["lm_heads.0.weight"]
    blocks = {key: weight for key, weight in weights.items() if "lm_head" not in key}
    hidden = torch.randn(4, HIDDEN)
    found = logits(write(tmp_path / "one", {**blocks, name: table}, original_lm_head=True), target, hidden)
    for head in range(HEADS):
        torch.testing.assert_close(found[head], by_hand(weights, hidden, head, table), atol=1e-4, rtol=1e-4)


def test_heads_without_a_table_use_the_targets(
    tmp_path: Path, target: ModelConfig, weights: dict[str, Tensor]
) -> None:
    blocks = {key: weight for key, weight in weights.items() if "lm_head" not in key}
    hidden = torch.randn(4, HIDDEN)
    found = logits(write(tmp_path / "none", blocks), target, hidden)
    for head in range(HEADS):
        expected = by_hand(weights, hidden, head, torch.eye(VOCAB, HIDDEN))
        torch.testing.assert_close(found[head], expected, atol=1e-4, rtol=1e-4)


def test_a_config_of_the_medusa_repository_takes_its_sizes_from_the_target(
    tmp_path: Path, target: ModelConfig, weights: dict[str, Tensor]
) -> None:
    folder = write(tmp_path / "old", weights)
    (folder / "config.json").write_text(json.dumps({"medusa_num_heads": 3, "medusa_num_layers": 2}))
    config = load_medusa_config("old", folder, target)
    assert (config.hidden_size, config.vocab_size, config.num_heads, config.num_layers) == (16, 24, 3, 2)


def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, target: ModelConfig, weights: dict[str, Tensor]
) -> None:
    def problem(change: dict[str, Tensor | None], **fields: Any) -> str:
        changed = {**weights, **change}
        kept = {name: weight for name, weight in changed.items() if weight is not None}
        folder = write(tmp_path / "heads", kept, **fields)
        with pytest.raises(ConfigError) as error:
            load_medusa(load_medusa_config("heads", folder, target), "cpu")
        return str(error.value)

    assert "missing: blocks.1.layers.0.weight" in problem({"blocks.1.layers.0.weight": None})
    assert "wrong shape: blocks.0.layers.0.bias" in problem({"blocks.0.layers.0.bias": torch.zeros(3)})
    assert "unexpected: blocks.0.layers.0.bias" in problem({}, medusa_fc_bias=False)
    assert "3 output tables for 4 heads" in problem({}, num_heads=4)
    assert "2 output tables for 3 heads" in problem({"lm_heads.2.weight": None})
    assert "truncated_vocab_size 10 is not supported" in problem({}, truncated_vocab_size=10)
    assert "'num_heads' is 0, expected a positive integer" in problem({}, num_heads=0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "medusa", "model": "shop-medusa", "num_speculative_tokens": 5}, "from 5 to 4"),
        (
            {"method": "medusa", "model": "shop-draft"},
            "does not go with shop-draft, which is a LlamaForCausalLM",
        ),
        ({"method": "draft_model", "model": "shop-medusa"}, '"method": "medusa"'),
    ],
)
def test_heads_and_other_drafters_are_not_interchangeable(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(EngineArgs(speculative_config=settings))
    assert words in str(error.value)


def test_heads_by_themselves_are_refused() -> None:
    with pytest.raises(ConfigError, match="draft for another model"):
        resolve(EngineArgs(model="shop-medusa"))


def test_heads_of_another_model_are_refused(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    folder = write(tmp_path / "heads", weights)
    with pytest.raises(ConfigError, match="hidden_size 16 and shop has 256"):
        resolve(EngineArgs(speculative_config={"method": "medusa", "model": str(folder)}))
