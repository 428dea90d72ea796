"""E36: rejection sampling: how often a draft from q is accepted, and what distribution comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.sampling.allowed_set import Weight


@dataclass(frozen=True)
class Judged:
    """One draft judged in each of `trials` requests."""

    acceptance: Annotated[float, "share"]
    said: Annotated[list[float], "share"]
    """By token id: what came out, accepted or drawn anew."""
    furthest_from_target: Annotated[float, "share"]
    """Largest difference between `said` and the target's probabilities."""
    furthest_from_draft: Annotated[float, "share"]
    accepted_of_certain: Annotated[float, "share"]
    """The same if the draft is always the drafter's likeliest token instead of a draw from q."""


@experiment("E36", megabytes=2500)
def rejection(
    ctx: Context,
    *,
    target: Annotated[list[Weight], Field(min_length=2, max_length=20)] = (0.6, 0.3, 0.1),
    draft: Annotated[list[Weight], Field(min_length=2, max_length=20)] = (0.3, 0.5, 0.2),
    temperature: Annotated[float, Field(ge=0, le=5)] = 1.0,
    trials: Annotated[int, Field(ge=1000, le=30_000)] = 20_000,
) -> Judged:
    """Judge drafts with the engine's rejection verifier. target, draft: weights of the tokens 0, 1, 2 ...

    A temperature of 0 makes both models greedy. Seeded: the same everywhere.
    """
    import numpy as np
    import torch

    from engine.sample.processors import SampleBatch
    from engine.sample.verify import DRAFT_NOISE, RejectionVerifier, target_probabilities
    from quizzes.experiments.sampling._sampler import logits_of, sampler_for

    size = min(len(target), len(draft))
    goal, guess = logits_of(target[:size]), logits_of(draft[:size])
    sampler = sampler_for(size, trials, temperature=temperature)
    slots = np.arange(trials)
    proposal = target_probabilities(guess.expand(trials, size), sampler.plan(slots))

    def judge(drafts: torch.Tensor, verifier: RejectionVerifier) -> tuple[np.ndarray, float]:
        table = np.zeros((trials, 4), np.int32)
        table[:, 1] = drafts.numpy()
        batch = SampleBatch(
            slots=np.repeat(slots, 2),
            lengths=np.tile([1, 2], trials),
            num_prompt_tokens=np.ones(2 * trials, np.int64),
            token_ids=table,
            num_drafts=np.tile([0, 1], trials),
        )
        chosen = sampler(goal.repeat(2 * trials, 1), batch, verifier=verifier).token_ids[::2]
        return np.bincount(chosen, minlength=size) / trials, float((chosen == table[:, 1]).mean())

    drawn = sampler.draft(guess.repeat(trials, 1), slots, np.ones(trials, np.int64), DRAFT_NOISE)
    said, acceptance = judge(drawn, RejectionVerifier(lambda slot: proposal[slot : slot + 1]))
    _, certain = judge(torch.full((trials,), int(guess.argmax())), RejectionVerifier())
    goal_probs = target_probabilities(goal[None], sampler.plan(slots[:1]))[0].numpy()
    return Judged(
        acceptance=acceptance,
        said=said.tolist(),
        furthest_from_target=float(abs(said - goal_probs).max()),
        furthest_from_draft=float(abs(said - proposal[0].numpy()).max()),
        accepted_of_certain=certain,
    )
