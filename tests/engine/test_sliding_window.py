"""A model that sees 24 tokens back gives back what it does not see any more, and says the same as before (E57)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import LLM, SamplingParams
from tests.models.checkpoints import write_checkpoint

WINDOW, BLOCK = 24, 4
GREEDY = SamplingParams(max_tokens=70, temperature=0, ignore_eos=True)
PROMPTS = [[7 * i % 37 + 3 for i in range(length)] for length in (3, 24, 50, 90)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(
        tmp_path_factory.mktemp("mistral"),
        architectures=["MistralForCausalLM"],
        head_dim=16,
        sliding_window=WINDOW,
        max_position_embeddings=256,
    )


def engine(model: Path, **settings) -> LLM:
    defaults = {
        "block_size": BLOCK,
        "max_model_len": 200,
        "num_gpu_blocks_override": 120,
        "debug_checks": True,
    }
    return LLM(str(model), skip_tokenizer_init=True, **{**defaults, **settings})


def tokens(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY, use_tqdm=False)]


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    """Return the tokens with every block kept, so that only attention applies the window."""
    with engine(model) as llm:
        kv = llm.llm_engine.engine_core.scheduler.kv
        assert kv.sliding_window == WINDOW
        kv.sliding_window = None
        return tokens(llm, PROMPTS)


@pytest.fixture
def counted(model: Path) -> Iterator[tuple[LLM, dict[str, int]]]:
    with engine(model, enable_prefix_caching=False, max_num_batched_tokens=16, max_num_seqs=4) as llm:
        scheduler, seen = llm.llm_engine.engine_core.scheduler, {"most": 0, "freed": 0}
        update = scheduler.update

        def watch(*args):
            outputs = update(*args)
            held = [len(r.blocks) - r.num_blocks_behind_window for r in scheduler.running]
            seen["most"] = max(seen["most"], *held, 0)
            seen["freed"] += scheduler.stats.num_blocks_behind_window
            return outputs

        scheduler.update = watch
        yield llm, seen


def test_blocks_held_are_bounded_by_the_window_however_long_the_text(
    counted: tuple[LLM, dict[str, int]], expected: list[list[int]]
) -> None:
    llm, seen = counted
    assert tokens(llm, PROMPTS[3:]) == expected[3:]
    total = -(-(90 + 69) // BLOCK)
    assert seen["most"] <= -(-(WINDOW - 1 + 16 - 1) // BLOCK) + 1 < total
    assert seen["freed"] >= total - seen["most"]


@pytest.mark.parametrize("backend", ["cpu", "sdpa", "reference"])
@pytest.mark.parametrize("budget", [5, 200])
def test_the_tokens_are_those_of_a_cache_that_keeps_everything(
    model: Path, expected: list[list[int]], backend: str, budget: int
) -> None:
    seqs = min(budget, 4)
    with engine(model, attention_backend=backend, max_num_batched_tokens=budget, max_num_seqs=seqs) as llm:
        assert tokens(llm, PROMPTS) == expected
        assert tokens(llm, PROMPTS) == expected, "again, with prefix hits that lack their first blocks"


def test_a_sequence_longer_than_the_cache_runs_if_its_window_fits(
    model: Path, expected: list[list[int]]
) -> None:
    with engine(model, num_gpu_blocks_override=13, max_num_batched_tokens=16, max_num_seqs=4) as llm:
        assert tokens(llm, PROMPTS) == expected, "160 tokens in a cache of 48, and others beside them"
        stats = llm.llm_engine.engine_core.scheduler.stats
        assert stats.num_free_blocks == 12


def test_a_hit_needs_only_the_blocks_inside_the_window(model: Path) -> None:
    """Blocks behind the window were freed first, so they are reused first, without any effect."""
    prompt, other = PROMPTS[3], [5 * i % 31 + 3 for i in range(100)]
    one = SamplingParams(max_tokens=1, temperature=0)
    with engine(model, num_gpu_blocks_override=40, max_num_batched_tokens=16, max_num_seqs=4) as llm:
        (first,) = llm.generate([prompt], one, use_tqdm=False)
        llm.generate([other], one, use_tqdm=False)
        scheduler = llm.llm_engine.engine_core.scheduler
        assert scheduler.kv.pool.num_evictions > 3
        (again,) = llm.generate([prompt], one, use_tqdm=False)
        assert again.num_cached_tokens == (len(prompt) - 1) // BLOCK * BLOCK
        assert again.outputs[0].token_ids == first.outputs[0].token_ids


def test_a_model_with_one_layer_that_sees_everything_keeps_every_block(tmp_path: Path) -> None:
    path = write_checkpoint(
        tmp_path,
        architectures=["Qwen2ForCausalLM"],
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=1,
        max_position_embeddings=256,
    )
    with engine(path) as llm:
        assert llm.llm_engine.engine_core.scheduler.kv.sliding_window is None
