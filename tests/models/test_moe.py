"""Experts: the same as looping over tokens, alone or in a batch, on one rank or shared out over several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from engine import LLM, SamplingParams
from engine.config import ConfigError, EngineArgs, MoEConfig
from engine.layers.moe import FusedMoE
from engine.models.checkpoint import read_headers
from engine.models.hf_config import load_model_config
from engine.models.loader import checkpoint_shards, create_model, load_model, load_weights
from engine.parallel import Group, Ranks
from tests.models.checkpoints import random_weights, read_config, write_checkpoint

MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
LAYER = "model.layers.0.block_sparse_moe"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("mixtral"), **MIXTRAL)


def one_by_one(weights: dict[str, Tensor], hidden: Tensor, k: int) -> tuple[Tensor, list[int]]:
    """Every token through each of its experts by itself, and how often each expert was used."""
    out, used = torch.zeros_like(hidden), [0] * 4
    for token, x in enumerate(hidden):
        probabilities = (weights[f"{LAYER}.gate.weight"] @ x).softmax(-1)
        best = probabilities.topk(k)
        for weight, expert in zip(best.values / best.values.sum(), best.indices.tolist(), strict=True):
            w1, w2, w3 = (weights[f"{LAYER}.experts.{expert}.w{part}.weight"] for part in (1, 2, 3))
            out[token] += weight * (w2 @ (F.silu(w1 @ x) * (w3 @ x)))
            used[expert] += 1
    return out, used


def layer_of(folder: Path, **args: Any) -> FusedMoE:
    return load_model(read_config(folder, **args), "cpu").get_submodule("model.layers.0.mlp")


def test_sorting_by_expert_gives_what_every_token_gets_by_itself(folder: Path) -> None:
    hidden = torch.randn(23, 16, generator=torch.Generator().manual_seed(2))
    expected, used = one_by_one(random_weights(folder), hidden, 2)
    layer = layer_of(folder)
    assert torch.allclose(layer(hidden), expected, atol=1e-4, rtol=1e-4)
    assert layer.tokens_per_expert.tolist() == used and sum(used) == 23 * 2


def test_a_token_has_the_same_bits_alone_and_among_others(folder: Path) -> None:
    hidden = torch.randn(40, 16, generator=torch.Generator().manual_seed(3))
    layer = layer_of(folder)
    together = layer(hidden)
    for index in (0, 7, 39):
        assert torch.equal(layer(hidden[index : index + 1])[0], together[index])


@pytest.mark.parametrize("expert_parallel", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_the_ranks_parts_add_up_to_the_whole(folder: Path, size: int, expert_parallel: bool) -> None:
    hidden = torch.randn(11, 16, generator=torch.Generator().manual_seed(4))
    expected = layer_of(folder)(hidden)
    config = read_config(folder)
    assert config.moe is not None
    config = replace(config, moe=replace(config.moe, expert_parallel=expert_parallel))
    total = torch.zeros_like(hidden)
    for rank in range(size):
        group = Group(range(size), rank)
        group.all_reduce = lambda x: x  # type: ignore[method-assign]  # the sum is taken below
        ranks = Ranks(group, Group())
        model = create_model(config, "cpu", ranks)
        load_weights(model, read_headers(config.path))
        layer = model.get_submodule("model.layers.0.mlp")
        held = [name for name in checkpoint_shards(model) if ".experts." in name]
        assert bool(held) != expert_parallel, "whole experts, or a slice of each"
        layer.finish_loading()
        total += layer(hidden)
    assert torch.allclose(total, expected, atol=1e-5)


def test_the_engine_counts_visits_and_never_replays_a_choice(folder: Path) -> None:
    prompts = [[3 + i % 30 for i in range(start, start + 9)] for start in (0, 5, 11)]
    params = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)
    with LLM(str(folder), skip_tokenizer_init=True, max_model_len=64, enable_prefix_caching=False) as llm:
        executor = llm.llm_engine.engine_core.executor
        assert not executor.worker.runner.replays
        alone = [llm.generate([prompt], params)[0].outputs[0].token_ids for prompt in prompts]
        before = executor.collective_rpc("expert_load")[0]
        together = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
        after = executor.collective_rpc("expert_load")[0]
    assert together == alone
    computed = 3 * (9 + 10 - 1)  # the last token is sampled and never computed
    for layer_before, layer_after in zip(before, after, strict=True):
        assert sum(layer_after) - sum(layer_before) == 2 * computed


@pytest.mark.parametrize(
    ("changes", "args", "message"),
    [
        ({"num_experts_per_tok": 9}, {}, "num_experts_per_tok .9. is more than 4 experts"),
        ({"num_local_experts": 0}, {}, "num_local_experts"),
        (
            {},
            {"enable_expert_parallel": True, "tensor_parallel_size": 3},
            "4 experts cannot be shared out evenly",
        ),
        ({"intermediate_size": 25}, {"tensor_parallel_size": 2}, "experts of size 25 cannot be cut"),
    ],
)
def test_experts_that_cannot_work_are_refused(
    tmp_path: Path, changes: dict[str, Any], args: dict[str, Any], message: str
) -> None:
    from tests.models.checkpoints import write_config

    folder = write_config(tmp_path, **{**MIXTRAL, **changes})
    with pytest.raises(ConfigError, match=message):
        load_model_config(EngineArgs(model=str(folder), device="cpu", load_format="dummy", **args))


def test_a_model_without_experts_has_nothing_to_share_out() -> None:
    with pytest.raises(ConfigError, match="has no experts"):
        load_model_config(EngineArgs(model="shop", device="cpu", enable_expert_parallel=True))


def test_qwen3_mixes_in_every_nth_layer_that_is_not_named_dense(tmp_path: Path) -> None:
    from tests.models.checkpoints import write_config

    folder = write_config(
        tmp_path,
        architectures=["Qwen3MoeForCausalLM"],
        num_hidden_layers=6,
        num_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=12,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
    )
    moe = read_config(folder, load_format="dummy").moe
    assert isinstance(moe, MoEConfig) and moe.layers == (False, True, False, False, False, True)
