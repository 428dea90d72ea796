"""The shipped Medusa heads: training lowers their loss, and the engine drafts what they say in plain torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from engine.core.request import Request
from engine.sampling_params import SamplingParams
from engine.zoo.corpus import draw_cases
from engine.zoo.export import load_model
from engine.zoo.medusa import MedusaHeads, MedusaTrainer, load_heads
from engine.zoo.recipes import MEDUSA_RECIPES
from engine.zoo.registry import resolve

RECIPE = MEDUSA_RECIPES["shop-medusa"]


def test_heads_start_as_the_identity() -> None:
    hidden = torch.randn(5, 16)
    assert all(torch.equal(state, hidden) for state in MedusaHeads(16, 3, 2)(hidden))


def test_a_step_lowers_the_loss_and_an_export_holds_the_heads(tokenizer: Tokenizer, tmp_path: Path) -> None:
    trainer = MedusaTrainer(replace(RECIPE, tokens_per_step=1500, warmup_steps=1), tokenizer)
    batch = trainer.next_batch(0.0)
    trainer.next_batch = lambda progress: batch
    before = trainer.loss(batch, 0.0)[0].item()
    for _ in range(6):
        trainer.step(0.0)
    assert trainer.loss(batch, 0.0)[0].item() < 0.95 * before
    stored = load_file(str(trainer.export(tmp_path / "heads") / "model.safetensors"))
    for name, weight in trainer.optimizer.weights.items():
        assert torch.equal(stored[name], weight.bfloat16())


def test_the_engine_drafts_what_the_heads_say_in_plain_torch(tokenizer: Tokenizer) -> None:
    from engine.config import EngineArgs
    from engine.engine_core import EngineCore

    settings = {"model": "shop-medusa", "num_speculative_tokens": 3}
    core = EngineCore.from_args(EngineArgs.create(model="shop", dtype="float32", speculative_config=settings))
    drafter = core.executor.worker.runner._speculator.drafter
    propose, drafts = drafter.propose, []
    drafter.propose = lambda step: drafts.append((propose(step), step.lengths[0])) or drafts[-1][0]
    target = load_model(resolve("shop"))
    heads = load_heads(resolve("shop-medusa"))
    compared = agreeing = 0
    for index, case in enumerate(draw_cases(6)[:6]):
        prompt = tokenizer.encode(case.prompt).ids
        drafts.clear()
        core.add_request(Request(str(index), prompt, SamplingParams(temperature=0, max_tokens=12)))
        text = list(prompt)
        while core.has_unfinished():
            text += core.step()[0].new_token_ids
        with torch.inference_mode():
            hidden = target.hidden(torch.tensor([text]))[0][0]
            guesses = torch.stack([target.logits(state).argmax(-1) for state in heads(hidden)], dim=1)
        for [found], length in drafts:  # the newest token is at length - 1
            expected = guesses[length - 2, : len(found)].tolist()
            compared, agreeing = compared + 1, agreeing + (found == expected)
    core.shutdown()
    assert compared > 15 and agreeing >= 0.95 * compared  # near ties may fall either way


def test_with_rejection_sampled_tokens_have_the_targets_distribution(tokenizer: Tokenizer) -> None:
    """Each request's second token, behind the most frequent first one, against the model's probabilities."""
    from engine.config import EngineArgs
    from engine.engine_core import EngineCore

    settings = {"model": "shop-medusa", "num_speculative_tokens": 1, "verifier": "rejection"}
    core = EngineCore.from_args(
        EngineArgs.create(model="shop", dtype="float32", max_num_seqs=200, speculative_config=settings)
    )
    prompt = tokenizer.encode("Silver Harbor").ids
    for seed in range(1000):
        params = SamplingParams(temperature=1.0, top_k=4, max_tokens=3, ignore_eos=True)
        core.add_request(Request(str(seed), prompt, params, seed=seed))
    answers: dict[str, list[int]] = {}
    accepted = drafted = 0
    while core.has_unfinished():
        for output in core.step():
            answers.setdefault(output.request_id, []).extend(output.new_token_ids)
        accepted += core.scheduler.stats.num_accepted_tokens
        drafted += core.scheduler.stats.num_draft_tokens
    core.shutdown()
    first = Counter(tokens[0] for tokens in answers.values()).most_common(1)[0][0]
    seconds = Counter(tokens[1] for tokens in answers.values() if tokens[0] == first)
    target = load_model(resolve("shop"))
    with torch.inference_mode():
        logits = target.logits(target.hidden(torch.tensor([[*prompt, first]]))[0][0, -1])
    best = logits.topk(4)
    chances = dict(zip(best.indices.tolist(), best.values.softmax(-1).tolist(), strict=True))
    total = seconds.total()
    assert seconds.keys() <= chances.keys() and total > 100 and 0 < accepted < drafted
    value = sum((seconds[token] - total * p) ** 2 / (total * p) for token, p in chances.items())
    assert value < 16.3, f"chi-square {value:.1f} with 3 degrees of freedom; 16.3 is exceeded once in 1,000"
