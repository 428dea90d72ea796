"""The EAGLE head: training and drafting have equal inputs, and the engine's drafts equal the trained head's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from engine.core.request import Request
from engine.sampling_params import SamplingParams
from engine.zoo.corpus import draw_cases
from engine.zoo.eagle import EagleHead, EagleTrainer, export_head
from engine.zoo.export import load_model
from engine.zoo.recipes import RECIPES
from engine.zoo.registry import resolve

RECIPE = RECIPES["shop-eagle"]


def shipped_head() -> EagleHead:
    head = EagleHead(RECIPE.model)
    weights = load_file(str(resolve("shop-eagle") / "model.safetensors"))
    halves = [weights.pop(f"{name}_proj.weight") for name in ("embed", "hidden")]
    head.load_state_dict({**weights, "fc.weight": torch.cat(halves, dim=1)})
    return head.float().eval()


@torch.inference_mode()
def step_by_step(head: EagleHead, embedded: Tensor, hidden: Tensor, place: int, passes: int) -> list[Tensor]:
    """The states guessed at `place` by passes 1, 2, ...: the true states up to where guessing begins, then guesses."""
    found = []
    for count in range(passes):
        states = hidden[:, : place + 1].clone()
        for own in range(count, 0, -1):  # the last `count` states are guesses, made one after the other
            at = place - own
            states[:, at + 1] = head(embedded[:, : at + 1], states[:, : at + 1], [])[:, at]
        found.append(head(embedded[:, : place + 1], states, [])[:, place])
    return found


def test_a_training_pass_sees_what_drafting_sees() -> None:
    torch.manual_seed(0)
    head = EagleHead(RECIPE.model).eval()
    embedded, hidden = torch.randn(1, 9, 256), torch.randn(1, 9, 256)
    expected = step_by_step(head, embedded, hidden, place=8, passes=3)
    states, earlier = hidden, []
    for wanted in expected:
        guess = head(embedded, states, earlier)
        torch.testing.assert_close(guess[:, 8], wanted, atol=1e-5, rtol=1e-4)
        states = torch.cat([hidden[:, :1], guess[:, :-1]], dim=1)


@pytest.mark.slow
def test_a_step_lowers_the_loss_and_an_export_holds_the_head(tokenizer: Tokenizer, tmp_path: Path) -> None:
    trainer = EagleTrainer(replace(RECIPE, tokens_per_step=600, warmup_steps=1), tokenizer)
    batch = trainer.next_batch(0.0)
    trainer.next_batch = lambda progress: batch
    before = trainer.loss(batch, 0.0)[0].item()
    for _ in range(6):
        trainer.step(0.0)
    assert trainer.loss(batch, 0.0)[0].item() < 0.95 * before
    folder = export_head(tmp_path / "head", RECIPE.model, trainer.optimizer.weights, tokenizer)
    stored = load_file(str(folder / "model.safetensors"))
    whole = torch.cat([stored["embed_proj.weight"], stored["hidden_proj.weight"]], dim=1)
    assert torch.equal(whole, trainer.optimizer.weights["fc.weight"].bfloat16())


def test_the_engine_drafts_what_the_head_says_in_plain_torch(tokenizer: Tokenizer) -> None:
    from engine.config import EngineArgs
    from engine.engine_core import EngineCore

    settings = {"model": "shop-eagle", "num_speculative_tokens": 3}
    core = EngineCore.from_args(EngineArgs.create(model="shop", dtype="float32", speculative_config=settings))
    drafter = core.executor.worker.runner._speculator.drafter
    propose, drafts = drafter.propose, []
    drafter.propose = lambda step: drafts.append(propose(step)) or drafts[-1]
    target, head = load_model(resolve("shop")), shipped_head()
    agreeing = 0
    for index, case in enumerate(draw_cases(6)[:6]):
        prompt = tokenizer.encode(case.prompt).ids
        drafts.clear()
        core.add_request(Request(str(index), prompt, SamplingParams(temperature=0, max_tokens=6)))
        token = core.step()[0].new_token_ids[0]
        core.abort([str(index)])
        with torch.inference_mode():
            hidden, _ = target.hidden(torch.tensor([prompt]))
            said, states, expected = [*prompt, token], hidden, []
            for _ in range(3):
                embedded = target.model.embed_tokens(torch.tensor([said[1:]]))
                guess = head(embedded, states, [])[:, -1:]
                expected.append(int(target.logits(guess[0, -1]).argmax()))
                said, states = [*said, expected[-1]], torch.cat([states, guess], dim=1)
        agreeing += drafts[0][0] == expected
    core.shutdown()
    assert agreeing >= 5  # near ties may fall either way
