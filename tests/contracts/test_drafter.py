"""Any drafter, yours included: `pytest tests/contracts -k drafter --impl lessons.my_drafter:MyDrafter`.

A drafter may guess what it likes, but never more than it is asked for, never a token that does not exist, and it must
survive everything that happens to requests. That drafts change no token is the engine's promise; it is checked too.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineArgs
from engine.core.request import Request
from engine.engine_core import EngineCore
from kernels.cpu import build
from tests.engine.harness import TINY_LLAMA, VOCAB_SIZE, request, run, tokens

pytestmark = pytest.mark.skipif(
    build.load_library().problem is not None, reason="bits depend on the batch here"
)


HEADS = {"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": 3}
SHIPPED = ("ngram", "suffix", "medusa")


@pytest.fixture(params=SHIPPED)
def drafter_config(request: pytest.FixtureRequest, impl: str | None, tmp_path: Path) -> dict[str, Any]:
    """Settings of a shipped drafter, or of the one under test."""
    if impl is None:
        settings: dict[str, Any] = {"method": request.param, "num_speculative_tokens": 3}
        if request.param == "medusa":
            settings["model"] = str(tmp_path / "heads")
            (tmp_path / "heads").mkdir()
            (tmp_path / "heads" / "config.json").write_text(json.dumps(HEADS))
        return settings
    if request.param != SHIPPED[0]:
        pytest.skip("one run with this drafter is enough")
    from importlib import import_module

    module, _, name = impl.partition(":")
    if not hasattr(getattr(import_module(module), name), "propose"):
        pytest.skip(f"{impl} is no drafter: it has no propose")
    return {"method": impl, "num_speculative_tokens": 3}


def work(seed: int) -> list[Request]:
    rng = random.Random(seed)
    return [
        request(
            str(index),
            [rng.randrange(2, 12) for _ in range(rng.randint(1, 30))],
            seed=index,
            temperature=rng.choice((0.0, 1.0)),
            max_tokens=rng.randint(1, 24),
        )
        for index in range(10)
    ]


@pytest.mark.parametrize(
    "limits", [{}, {"num_gpu_blocks_override": 26}, {"max_num_batched_tokens": 9, "max_num_seqs": 3}]
)
def test_a_drafter_keeps_its_contract(
    drafter_config: dict[str, Any], limits: dict[str, int], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_LLAMA))

    def engine(speculative_config: dict[str, Any] | None) -> EngineCore:
        return EngineCore.from_args(
            EngineArgs.create(
                model=str(tmp_path),
                load_format="dummy",
                skip_tokenizer_init=True,
                block_size=4,
                debug_checks=True,
                speculative_config=speculative_config,
                **limits,
            )
        )

    plain, drafting = engine(None), engine(drafter_config)
    drafter = drafting.executor.worker.runner._speculator.drafter
    propose = drafter.propose

    def checked(step: Any) -> list[list[int]]:
        before = step.token_ids.copy()
        drafts = propose(step)
        assert len(drafts) == len(step.slots)
        for found, most in zip(drafts, step.max_drafts, strict=True):
            assert len(found) <= most and all(0 <= token < VOCAB_SIZE for token in found)
        assert (step.token_ids == before).all(), "a drafter changed the tokens"
        return drafts

    drafter.propose = checked
    for seed in range(3):
        assert tokens(run(drafting, work(seed))) == tokens(run(plain, work(seed)))
