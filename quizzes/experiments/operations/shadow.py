from typing import Any, Literal

from quizzes.experiments import Context, Result, arg, experiment, greedy
from quizzes.experiments.operations._gateway import Backend, Gateway

TITLES = ("lamps", "shelves", "chairs", "tables", "clocks", "mirrors", "carpets", "curtains")


@experiment("E49")
def shadow(
    ctx: Context,
    requests: int = arg(8, 1, 8),
    candidate: Literal["same", "preempting", "other_model"] = "same",
    max_tokens: int = arg(24, 1, 48),
) -> Result:
    """Mirror live requests to a candidate and compare greedy answers; then cut over; then roll back.

    same: the same model with another token budget. preempting: with so few blocks that requests are preempted.
    other_model: the small draft model.

    Returns:
        requests
        answers_from_old [requests]: Answers that users got from the old backend.
        compared, different [requests]
        difference_share [share]
        calls_per_request [calls]
        after_cutover_from_new [requests]: Answers from the new backend after the weights are swapped, for the same
            application calls.
        after_rollback_from_old [requests]
        lines_changed_in_application
    """
    candidates: dict[str, dict[str, Any]] = {
        "same": {"max_num_batched_tokens": 64},
        "preempting": {"num_gpu_blocks_override": 8},
        "other_model": {"model": "shop-draft"},
    }
    params = greedy(max_tokens)
    common: dict[str, Any] = {"max_model_len": 96}
    with ctx.llm(**common) as old, ctx.llm(**common | candidates[candidate]) as new:

        def backend(llm: Any) -> Backend:
            return lambda user, prompt: llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].text

        gateway = Gateway({"old": backend(old), "new": backend(new)}, {"old": 1.0, "new": 0.0})
        prompts = [f"I am customer {i}. When will my {TITLES[i]} arrive?" for i in range(requests)]

        def application() -> None:
            for index, prompt in enumerate(prompts):
                gateway.answer(f"user-{index}", prompt)

        gateway.shadow = "new"
        application()
        counts = gateway.counts
        first = (counts.served.get("old", 0), counts.shadow_compared, counts.shadow_different)
        calls = sum(counts.calls.values())
        gateway.shadow, gateway.weights = None, {"old": 0.0, "new": 1.0}
        application()
        after_cutover = counts.served.get("new", 0)
        gateway.weights = {"old": 1.0, "new": 0.0}
        application()
    return Result(
        requests=requests,
        answers_from_old=first[0],
        compared=first[1],
        different=first[2],
        difference_share=first[2] / first[1],
        calls_per_request=calls / requests,
        after_cutover_from_new=after_cutover,
        after_rollback_from_old=counts.served.get("old", 0) - first[0],
        lines_changed_in_application=0,
    )
