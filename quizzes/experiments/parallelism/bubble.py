from collections import deque
from typing import Any

from quizzes.experiments import Ask, Context, Result, arg, experiment


@experiment("E46")
def bubble(
    ctx: Context, stages: int = arg(4, 1, 16), requests: int = arg(2, 1, 64), output: int = arg(40, 4, 200)
) -> Result:
    """Count idle stages when the real scheduler plans steps for a pipeline.

    One step per tick enters a pipeline of `stages` stages; a step's tokens are known when it leaves the last stage.
    Prompts have one token, so every step is a decode step. When the scheduler has no request to run, an empty slot
    moves through the pipeline.

    Returns:
        Decode of equal requests; time counts in ticks, the time of one stage.
        ticks [ticks]
        idle_share [share]: Stage-ticks without work over all; the ticks in which the pipeline fills and empties are
            left out.
        gap_ticks [ticks]: Between two tokens of a request, mean.
        largest_batch [rows]: Rows of the largest step: with several steps under way each gets its share of the
            requests.
        tokens_per_tick [tokens]
    """
    engine = ctx.core(max_num_seqs=64, scheduler={"max_concurrent_batches": stages})
    for index in range(requests):
        engine.add(Ask(f"r{index}", 1, output))
    scheduler = engine.scheduler
    under_way: deque[Any] = deque()
    moments: dict[str, list[int]] = {}
    work, tick, largest = [], 0, 0
    while scheduler.has_unfinished():
        out = scheduler.schedule()
        largest = max(largest, len(out.scheduled))
        under_way.append(out)
        tick += 1
        work.append(sum(bool(step.scheduled) for step in under_way))
        if len(under_way) < stages:
            continue
        done = under_way.popleft()
        for output_row in scheduler.update(done, engine._answer(done)):
            moments.setdefault(output_row.request_id, []).append(tick)
    full = work[stages : -2 * stages] or work
    gaps = [b - a for times in moments.values() for a, b in zip(times, times[1:], strict=False)]
    return Result(
        ticks=tick,
        idle_share=1 - sum(full) / (stages * len(full)),
        gap_ticks=sum(gaps) / len(gaps),
        largest_batch=largest,
        tokens_per_tick=requests * output / tick,
    )
