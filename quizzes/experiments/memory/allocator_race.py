from dataclasses import dataclass
from typing import Any

from quizzes.experiments import BadArguments, Context, Result, arg, experiment
from quizzes.experiments.charts import vega
from quizzes.experiments.memory._allocators import Allocator, Buddy, Contiguous, Paged


@experiment("E05")
def allocator_race(
    ctx: Context,
    slots: int = arg(1024, 16, 65_536),
    max_len: int = arg(512, 2, 4096),
    prompts: list[int] = arg([40, 100, 24, 60, 180, 33, 70, 20, 90, 50, 120, 30], 1, 2000, count=(1, 64)),
    outputs: list[int] = arg([60, 20, 100, 40, 30, 80, 50, 90, 25, 70, 35, 110], 1, 2000, count=(1, 64)),
    arrive_every: int = arg(0, 0, 100),
    block_size: int = arg(16, 1, 1024),
) -> Result:
    """Serve the same requests on four allocators and compare concurrency and waste (2309.06180, sections 3 and 6).

    First come, first served. A step computes a prompt and its first token, or one token of every running request. If
    the paged pool runs out, the latest request frees all of its blocks and starts again.

    Returns:
        One list entry per allocator: reserve_max, buddy, first_fit, paged. reserve_max takes max_len slots, buddy the
        next power of two of the final length, first_fit exactly the final length (both know it in advance), paged a
        block at a time.
        names
        started_at_once [requests]: Admitted in step 0.
        peak_running [requests]
        steps [steps]: Steps until all have finished.
        waste [share]: Slots taken that hold no token, of all slots taken, over all steps.
        idle [share]: Slots of the whole memory that hold no token, over the steps with waiting requests.
        scattered [steps]: Steps in which the next request would have fitted into the free slots if they were
            contiguous.
        preemptions [preemptions]
    """
    if len(prompts) != len(outputs):
        raise BadArguments(f"{len(prompts)} prompts and {len(outputs)} outputs: one of each per request")
    finals = [prompt + output - 1 for prompt, output in zip(prompts, outputs, strict=True)]
    if max(finals) > max_len:
        raise BadArguments(f"a request needs {max(finals)} slots, more than max_len={max_len}")
    room = min(slots // block_size * block_size, 1 << (slots.bit_length() - 1))
    if max_len > slots or 1 << (max(finals) - 1).bit_length() > room:
        raise BadArguments(f"{slots} slots cannot hold the longest request on its own; raise slots")
    contestants: dict[str, Allocator] = {
        "reserve_max": Contiguous(slots, max_len),
        "buddy": Buddy(slots),
        "first_fit": Contiguous(slots),
        "paged": Paged(slots, block_size),
    }
    runs = [_run(one, slots, prompts, finals, arrive_every) for one in contestants.values()]
    return Result(
        names=list(contestants),
        started_at_once=[run.first for run in runs],
        peak_running=[run.peak for run in runs],
        steps=[run.steps for run in runs],
        waste=[run.wasted / run.taken for run in runs],
        idle=[run.idle / (slots * run.crowded) if run.crowded else 0.0 for run in runs],
        scattered=[run.scattered for run in runs],
        preemptions=[run.preemptions for run in runs],
    )


@dataclass
class _Run:
    first: int = 0
    peak: int = 0
    steps: int = 0
    taken: int = 0
    wasted: int = 0
    idle: int = 0
    crowded: int = 0
    scattered: int = 0
    preemptions: int = 0


def _run(memory: Allocator, slots: int, prompts: list[int], finals: list[int], arrive_every: int) -> _Run:
    run = _Run()
    waiting = list(range(len(prompts)))
    length: dict[int, int] = {}
    while waiting or length:
        for name in sorted(length):
            if name in length:
                _grow(memory, name, length, waiting, run)
        while waiting and waiting[0] * arrive_every <= run.steps:
            name = waiting[0]
            if not memory.admit(str(name), prompts[name], finals[name]):
                run.scattered += memory.fits_in_sum(prompts[name], finals[name])
                break
            length[waiting.pop(0)] = prompts[name]
        _count(run, memory.taken, sum(length.values()), len(length), slots, crowded=bool(waiting))
        for name in [name for name, tokens in length.items() if tokens == finals[name]]:
            memory.free(str(name))
            del length[name]
    return run


def _grow(memory: Allocator, name: int, length: dict[int, int], waiting: list[int], run: _Run) -> None:
    """Add one token to a running request; preempt the latest arrivals if necessary."""
    while name in length and not memory.grow(str(name)):
        victim = max(length)
        memory.free(str(victim))
        del length[victim]
        waiting.insert(0, victim)
        run.preemptions += 1
    if name in length:
        length[name] += 1


def _count(run: _Run, taken: int, stored: int, running: int, slots: int, *, crowded: bool) -> None:
    if run.steps == 0:
        run.first = running
    run.peak = max(run.peak, running)
    run.steps += 1
    run.taken += taken
    run.wasted += taken - stored
    run.idle += (slots - stored) * crowded
    run.crowded += crowded


def chart(result: Result) -> dict[str, Any]:
    """Share of the slots taken that hold no token, by allocator."""
    rows = [
        {"allocator": name, "empty": waste, "steps": steps}
        for name, waste, steps in zip(result.names, result.waste, result.steps, strict=True)
    ]
    return vega(
        rows,
        "bar",
        y=("allocator:N", {"sort": None}),
        x=("empty:Q", {"axis": {"format": "%"}}),
        tooltip="steps:Q",
    )
