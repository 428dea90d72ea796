from typing import Any, Literal

from quizzes.experiments import Context, Result, arg, experiment
from quizzes.experiments.speculation._shop import METHODS, Counted, prompts, run

Method = Literal["ngram", "draft_model", "eagle"]


@experiment("E36", seconds=40, megabytes=2500)
def lossless(
    ctx: Context,
    method: Method = "draft_model",
    workload: Literal["facts", "recommend", "tools", "free"] = "recommend",
    verifier: Literal["coupling", "rejection"] = "coupling",
    temperature: float = arg(0.0, 0, 5),
    k: int = arg(4, 1, 8),
    requests: int = arg(4, 1, 16),
    max_tokens: int = arg(32, 4, 64),
) -> Result:
    """Check that drafts leave the shop model's answers unchanged, and count the steps saved.

    Prompts of a workload run one at a time, plain and with drafts. coupling: both models use the noise of the
    position. rejection: the textbook's min(1, p / q).

    Returns:
        The same requests with and without drafts.
        identical: Token for token, all answers.
        steps_without, steps_with [steps]
        tokens [tokens]
        tokens_per_step [tokens]: Tokens per step after a request's first token, with drafts.
        acceptance_rate [share]
        accepted_by_place [drafts]: Share of steps in which the first draft of a row was right, the second, ...
        first_token_step_without, first_token_step_with [step]
        computed_without, computed_with [positions]
    """
    questions = prompts(workload, requests)

    def answer(speculative: dict[str, Any] | None) -> Counted:
        with ctx.llm(max_num_seqs=16, speculative_config=speculative, traced=speculative is not None) as llm:
            return run(llm, questions, temperature=temperature, max_tokens=max_tokens, one_by_one=True)

    plain = answer(None)
    drafts = answer({**METHODS[method], "num_speculative_tokens": k, "verifier": verifier})
    return Result(
        identical=plain.tokens == drafts.tokens,
        steps_without=plain.steps,
        steps_with=drafts.steps,
        tokens=sum(map(len, drafts.tokens)),
        tokens_per_step=(sum(map(len, drafts.tokens)) - requests) / max(1, drafts.decode_rows),
        acceptance_rate=drafts.accepted / drafts.drafted if drafts.drafted else 0.0,
        accepted_by_place=drafts.by_place,
        first_token_step_without=plain.first_token_step,
        first_token_step_with=drafts.first_token_step,
        computed_without=plain.computed,
        computed_with=drafts.computed,
    )
