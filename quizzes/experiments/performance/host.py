"""Work of the host beside the forward pass."""

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any
from unittest.mock import patch

from quizzes.experiments import Context, Result, arg, experiment, worker_of
from quizzes.experiments.performance.feeding import WORDS

PARTS = ("tokenise", "schedule", "forward", "sample", "update", "detokenise")


@experiment("E65", determinism="statistical", seconds=30)
def cpu_path(
    ctx: Context, batch: int = arg(8, 1, 64), output: int = arg(16, 1, 64), words: int = arg(20, 1, 400)
) -> Result:
    """Profile serving on this CPU: the share of each component beside the forward pass.

    `shop` serves `batch` prompts of about `words` words with `output` tokens each; every component is timed.

    Returns: Shares of the time from the first prompt's text to the last answer's text; they add up to 1.
        tokenise, schedule, forward, sample, update, detokenise, other [share]
        host [share]: Everything but the forward pass: what would remain with an infinitely fast device.
        forward_us_per_token [us]: Forward time per generated token.
        steps [steps]
    """
    from engine import SamplingParams

    prompts = [" ".join(ctx.rng.choices(WORDS, k=words)) for _ in range(batch)]
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=output, ignore_eos=True)
    with ctx.llm(max_num_seqs=batch, enable_prefix_caching=False) as llm:
        llm.generate(prompts, params, use_tqdm=False)
        with _clocks(llm) as seconds:
            began = perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            total = perf_counter() - began
    shares = {part: seconds[part] / total for part in PARTS}
    return Result(
        **shares,
        other=max(0.0, 1 - sum(shares.values())),
        host=1 - shares["forward"],
        forward_us_per_token=1e6 * seconds["forward"] / (batch * output),
        steps=int(seconds["steps"]),
    )


@contextmanager
def _clocks(llm: Any) -> Any:
    """Wrap the parts' methods for as long as the block lasts. Time belongs to the innermost part that runs."""
    engine = llm.llm_engine
    core = engine.engine_core
    seconds: dict[str, float] = dict.fromkeys((*PARTS, "steps"), 0.0)
    running: list[str] = []
    last = perf_counter()

    def switch() -> None:
        nonlocal last
        now = perf_counter()
        if running:
            seconds[running[-1]] += now - last
        last = now

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            switch()
            running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                switch()
                running.pop()
                seconds["steps"] += part == "schedule"

        return call

    places = [
        (engine.input_processor, "process", "tokenise"),
        (core.scheduler, "schedule", "schedule"),
        (core.executor, "submit", "forward"),
        (type(worker_of(llm).runner.sampler), "__call__", "sample"),
        (core.scheduler, "update", "update"),
        (engine.output_processor, "update", "detokenise"),
    ]
    with ExitStack() as patches:
        for owner, name, part in places:
            patches.enter_context(patch.object(owner, name, timed(part, getattr(owner, name))))
        yield seconds
