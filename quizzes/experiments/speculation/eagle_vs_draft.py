from typing import Literal

from quizzes.experiments import Context, NeedsHardware, Result, arg, experiment
from quizzes.experiments.speculation._shop import METHODS, prompts, run


@experiment("E36", "E37", seconds=60, megabytes=2500)
def eagle_vs_draft(
    ctx: Context,
    workload: Literal["facts", "recommend", "tools", "chat", "free"] = "chat",
    k: int = arg(4, 1, 8),
    requests: int = arg(8, 1, 24),
    max_tokens: int = arg(32, 8, 64),
    device: Literal["auto", "cuda"] = "auto",
) -> Result:
    """Compare the acceptance of an EAGLE head with that of a separate draft model on the same prompts.

    Both shipped drafters were trained on the shop's conversations, the draft model for as long as the target, which
    makes it better than usual.

    Returns:
        Accepted over drafted, greedy.
        eagle_acceptance, draft_acceptance [share]
        eagle_tokens_per_step, draft_tokens_per_step [tokens]
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise NeedsHardware("drafters are to be compared on a GPU, and there is none (CUDA)")
    found = {}
    for method in ("eagle", "draft_model"):
        speculative = {**METHODS[method], "num_speculative_tokens": k}
        with ctx.llm(max_num_seqs=32, speculative_config=speculative, device=device) as llm:
            counted = run(llm, prompts(workload, requests), temperature=0.0, max_tokens=max_tokens)
        decoded = sum(len(tokens) - 1 for tokens in counted.tokens)
        rate = counted.accepted / counted.drafted if counted.drafted else 0.0
        found[method] = rate, decoded / max(1, counted.decode_rows)
    return Result(
        eagle_acceptance=found["eagle"][0],
        draft_acceptance=found["draft_model"][0],
        eagle_tokens_per_step=found["eagle"][1],
        draft_tokens_per_step=found["draft_model"][1],
    )
