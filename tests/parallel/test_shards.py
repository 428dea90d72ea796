"""The parts of all ranks of a tensor or pipeline group are together exactly the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.models.checkpoint import read_headers
from engine.models.loader import (
    checkpoint_shards,
    checkpoint_tensors,
    create_model,
    fill_with_random,
    load_weights,
)
from engine.parallel import Group, Ranks, Shard, groups_of_world
from tests.models.checkpoints import random_weights, read_config, write_checkpoint

QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "attention_bias": True}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "head_dim": 8}
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4}
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "mlp_only_layers": [1],
}
LLAMA_BIAS = {"attention_bias": True, "mlp_bias": True}


def ranks_of(tensor: int, pipeline: int) -> list[Ranks]:
    """Every rank's groups, not connected: enough to build and load."""
    return [
        Ranks(Group(range(tensor), t), Group(range(pipeline), p))
        for p in range(pipeline)
        for t in range(tensor)
    ]


@pytest.mark.parametrize(
    "changes", [{}, QWEN2, QWEN3, MIXTRAL, QWEN3_MOE, LLAMA_BIAS, {"tie_word_embeddings": True}]
)
@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (4, 1), (1, 2), (2, 2)])
def test_the_ranks_together_hold_every_element_of_the_checkpoint_and_each_only_its_own(
    tmp_path: Path, changes: dict[str, Any], tensor: int, pipeline: int
) -> None:
    folder = write_checkpoint(tmp_path, **changes)
    config, weights = read_config(folder), random_weights(folder)
    covered = {name: torch.zeros(weight.shape, dtype=torch.int32) for name, weight in weights.items()}
    for ranks in ranks_of(tensor, pipeline):
        model = create_model(config, "cpu", ranks)
        load_weights(model, read_headers(config.path))
        shards = checkpoint_shards(model)
        for name, held in checkpoint_tensors(model).items():
            part = shards[name].slices(weights[name].shape) if name in shards else ...
            assert torch.equal(held, weights[name][part]), name
            covered[name][part] += 1
    for name, count in covered.items():
        assert (count > 0).all(), f"ranks do not cover {name}"
        if any(layer in name for layer in ("q_proj", "gate_proj", "down_proj.weight", ".experts.")):
            assert (count == 1).all(), f"{name} is held twice"


def test_a_kv_head_is_copied_to_the_ranks_whose_query_heads_read_it(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, num_attention_heads=8, num_key_value_heads=2, hidden_size=32)
    config, weights = read_config(folder), random_weights(folder)
    name = "model.layers.0.self_attn.k_proj.weight"
    for rank, ranks in enumerate(ranks_of(4, 1)):
        model = create_model(config, "cpu", ranks)
        load_weights(model, read_headers(config.path))
        attention = model.get_submodule("model.layers.0.self_attn")
        assert (attention.num_heads, attention.num_kv_heads) == (2, 1)
        assert torch.equal(checkpoint_tensors(model)[name], weights[name].chunk(2)[rank // 2])


@pytest.mark.parametrize(("tensor", "pipeline"), [(2, 1), (1, 2)])
def test_random_weights_are_the_same_model_however_it_is_split(
    tmp_path: Path, tensor: int, pipeline: int
) -> None:
    config = read_config(write_checkpoint(tmp_path))
    alone = create_model(config, "cpu")
    fill_with_random(alone, seed=5)
    whole = checkpoint_tensors(alone)
    for ranks in ranks_of(tensor, pipeline):
        model = create_model(config, "cpu", ranks)
        fill_with_random(model, seed=5)
        shards = checkpoint_shards(model)
        for name, held in checkpoint_tensors(model).items():
            part = shards[name].slices(whole[name].shape) if name in shards else ...
            assert torch.equal(held, whole[name][part]), name


def test_only_the_first_rank_adds_the_bias_of_a_row_parallel_layer(tmp_path: Path) -> None:
    config = read_config(write_checkpoint(tmp_path, **LLAMA_BIAS))
    for rank, ranks in enumerate(ranks_of(2, 1)):
        projection = create_model(config, "cpu", ranks).get_submodule("model.layers.0.mlp.down_proj")
        projection.finish_loading()
        assert (projection.bias is None) == (rank == 1)


def test_a_shard_and_its_whole() -> None:
    shard = Shard(dim=1, index=2, count=4)
    assert shard.whole_shape((3, 5)) == (3, 20)
    assert shard.slices((3, 20)) == (slice(None), slice(10, 15))


@pytest.mark.parametrize(
    ("num_layers", "stages", "sizes"), [(6, 1, [6]), (6, 2, [3, 3]), (7, 2, [4, 3]), (5, 4, [1, 1, 2, 1])]
)
def test_stages_share_the_layers_in_order(num_layers: int, stages: int, sizes: list[int]) -> None:
    parts = [Ranks(pipeline=Group(range(stages), stage)).layers(num_layers) for stage in range(stages)]
    assert [len(part) for part in parts] == sizes
    assert [layer for part in parts for layer in part] == list(range(num_layers))


def test_the_tensor_rank_changes_fastest() -> None:
    assert groups_of_world(2, 3) == ([[0, 1], [2, 3], [4, 5]], [[0, 2, 4], [1, 3, 5]])
