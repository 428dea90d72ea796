from quizzes.experiments import Result, arg, experiment
from quizzes.experiments.sampling.sampler import logits_of, sampler_for


@experiment("E36", megabytes=2500)
def rejection(
    target: list[float] = arg([0.6, 0.3, 0.1], above=0, high=1e6, count=(2, 20)),
    draft: list[float] = arg([0.3, 0.5, 0.2], above=0, high=1e6, count=(2, 20)),
    temperature: float = arg(1.0, 0, 5),
    trials: int = arg(20_000, 1000, 30_000),
) -> Result:
    """Verify drafts by rejection sampling: acceptance rate and output distribution.

    target, draft: weights of the tokens 0, 1, 2 ... A temperature of 0 makes both greedy. Seeded: the same everywhere.

    Returns: One draft judged in each of `trials` requests.
        acceptance [share]
        said [share]: By token id: output tokens, accepted or drawn again.
        furthest_from_target [share]: Largest difference between `said` and the target's probabilities.
        furthest_from_draft [share]
        accepted_of_certain [share]: The same if the draft is the drafter's likeliest token, not a draw from q.
    """
    import numpy as np
    import torch

    from engine.sample.draft_acceptance import DRAFT_NOISE, RejectionVerifier, target_probabilities
    from engine.sample.processors import SampleBatch

    size = min(len(target), len(draft))
    goal, guess = logits_of(target[:size]), logits_of(draft[:size])
    sampler = sampler_for(size, trials, temperature=temperature)
    slots, ones = np.arange(trials), np.ones(trials, np.int64)
    proposal = target_probabilities(guess.expand(trials, size), sampler.plan(slots))

    def judge(drafts: torch.Tensor, verifier: RejectionVerifier) -> tuple[np.ndarray, float]:
        table = np.zeros((trials, 4), np.int32)
        table[:, 1] = drafts.numpy()
        lengths, num_drafts = np.tile([1, 2], trials), np.tile([0, 1], trials)
        batch = SampleBatch(np.repeat(slots, 2), lengths, np.repeat(ones, 2), table, num_drafts=num_drafts)
        chosen = sampler(goal.repeat(2 * trials, 1), batch, verifier=verifier).token_ids[::2]
        return np.bincount(chosen, minlength=size) / trials, float((chosen == table[:, 1]).mean())

    drawn = sampler.draft(guess.repeat(trials, 1), slots, ones, DRAFT_NOISE)
    said, acceptance = judge(drawn, RejectionVerifier(lambda slot: proposal[slot : slot + 1]))
    _, certain = judge(torch.full((trials,), int(guess.argmax())), RejectionVerifier())
    goal_probs = target_probabilities(goal[None], sampler.plan(slots[:1]))[0].numpy()
    return Result(
        acceptance=acceptance,
        said=said.tolist(),
        furthest_from_target=float(abs(said - goal_probs).max()),
        furthest_from_draft=float(abs(said - proposal[0].numpy()).max()),
        accepted_of_certain=certain,
    )
