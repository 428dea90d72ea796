"""Experts over two processes: the same tokens, and every rank knows how the load is spread (E46)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine import LLM, SamplingParams
from tests.models.checkpoints import write_checkpoint

PROMPTS = [[3 + i % 30 for i in range(start, start + 9)] for start in (0, 5, 11)]
GREEDY = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)


def run(folder: Path, **settings: Any) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Tokens, and per rank and mixture layer the visits of each expert."""
    with LLM(str(folder), skip_tokenizer_init=True, max_model_len=64, **settings) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        load = llm.llm_engine.engine_core.executor.collective_rpc("expert_load")
    return [output.outputs[0].token_ids for output in outputs], load


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"tensor_parallel_size": 2, "enable_expert_parallel": True},
        pytest.param({"tensor_parallel_size": 2}, marks=pytest.mark.slow),
        pytest.param({"pipeline_parallel_size": 2}, marks=pytest.mark.slow),
    ],
    ids=["experts shared out", "experts cut", "layers shared out"],
)
def test_two_processes_say_what_one_says(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = write_checkpoint(
        tmp_path,
        architectures=["MixtralForCausalLM"],
        num_local_experts=4,
        num_experts_per_tok=2,
        head_dim=16,
        max_position_embeddings=128,
    )
    expected, (load,) = run(folder)
    tokens, loads = run(folder, **settings)
    assert tokens == expected
    if "pipeline_parallel_size" in settings:
        assert [loads[0][0], loads[1][0]] == load, "each stage counts for its own layers"
    else:
        assert loads == [load, load]
