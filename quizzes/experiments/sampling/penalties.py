from engine.core.sched_output import RequestInit
from engine.sampling_params import SamplingParams
from quizzes.experiments import Context, Result, arg, experiment


@experiment("E39", megabytes=2000)
def penalties(
    ctx: Context,
    logits: list[float] = arg([3.0, 2.0, -1.0, 0.5], -100, 100, count=(2, 1000)),
    prompt: list[int] = arg([2], 0, 999, count=(0, 1000)),
    output: list[int] = arg([0, 0, 1], 0, 999, count=(0, 1000)),
    repetition_penalty: float = arg(1.2, above=0, high=100),
    presence_penalty: float = arg(0.5, -2, 2),
    frequency_penalty: float = arg(0.5, -2, 2),
) -> Result:
    """Apply repetition, presence and frequency penalties to one row of logits.

    prompt, output: token ids of the prompt and of the output. Repetition counts both, the other two count the output
    only.

    Returns:
        Logits after the engine's penalty processor.
        logits [logit]
        change [logit]: By token id: after minus before.
        greedy_before, greedy_after [token id]
    """
    import numpy as np
    import torch

    from engine.sample.processors import Penalties, SampleBatch

    size = len(logits)
    said = [token % size for token in (*prompt, *output)]
    params = SamplingParams(
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
    )
    before = torch.tensor([list(logits)], dtype=torch.float32)
    after = before.clone()
    processor = Penalties(size, 1, torch.device("cpu"))
    if processor.add_request(0, RequestInit(said, len(prompt), params, frozenset(), 0)):
        table = np.array([said or [0]], np.int32)
        lengths = np.array([len(said)])
        batch = SampleBatch(np.zeros(1, np.int64), lengths, np.array([len(prompt)]), table)
        processor.apply(after, np.zeros(1, np.int64), batch)
    return Result(
        logits=[round(value, 5) for value in after[0].tolist()],
        change=[round(value, 5) for value in (after - before)[0].tolist()],
        greedy_before=int(before.argmax()),
        greedy_after=int(after.argmax()),
    )
