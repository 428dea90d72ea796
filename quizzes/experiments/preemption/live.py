"""Preemption and failures of the live engine."""

import logging
from itertools import count
from typing import Any, Literal
from unittest.mock import patch

from engine.config import ConfigError
from engine.core.errors import EngineDeadError
from quizzes.experiments import Context, Result, arg, experiment, generate, greedy


@experiment("E17", "E18")
def same_text(
    ctx: Context,
    mode: Literal["recompute", "swap"] = "recompute",
    num_requests: int = arg(6, 2, 8),
    max_tokens: int = arg(40, 1, 64),
    num_blocks: int = arg(16, 12, 512),
) -> Result:
    """Check that preemption does not change the answers of the shop model, greedy.

    Returns: Answers in ample memory and in `num_blocks` blocks of 16 tokens, compared token by token.
        num_requests, num_preemptions
        preempted [preemptions]: Preemptions by request, in order of arrival.
        same_answers [requests]: Whose tokens are those of the run without pressure.
        blocks_copied [blocks]: Blocks copied from the host to the device; 0 with recompute.
    """
    prompts = [
        f"Hello, I am customer {i}. When will my order of {i + 2} lamps arrive, please?"
        for i in range(num_requests)
    ]
    with ctx.llm(max_model_len=160) as llm:
        ample = generate(llm, prompts, greedy(max_tokens))
    tight: dict[str, Any] = {"num_gpu_blocks_override": num_blocks, "preemption_mode": mode}
    with ctx.llm(traced=True, max_model_len=160, **tight) as llm:
        scheduler = llm.llm_engine.engine_core.scheduler
        copied, update = [], scheduler.update

        def counting(*step: Any) -> Any:
            outputs = update(*step)
            copied.append(scheduler.stats.num_blocks_copied_in)
            return outputs

        scheduler.update = counting
        scarce = llm.generate(prompts, greedy(max_tokens), use_tqdm=False)
    preempted = [output.metrics.num_preemptions for output in scarce]
    return Result(
        num_requests=num_requests,
        num_preemptions=sum(preempted),
        preempted=preempted,
        same_answers=sum(a.token_ids == b.outputs[0].token_ids for a, b in zip(ample, scarce, strict=True)),
        blocks_copied=sum(copied),
    )


@experiment("E53")
def engine_failure(
    ctx: Context,
    where: Literal["boot", "step", "request", "pool"] = "step",
    num_requests: int = arg(4, 1, 8),
    short_tokens: int = arg(2, 1, 8),
    fails_at_step: int = arg(5, 1, 30),
) -> Result:
    """Make memory fail in the shop model: too little at start, an allocator error in a step, one failing request.

    boot: a KV cache too small for one sequence of max_model_len. step: the forward pass of step `fails_at_step` runs
    out of memory (the first request asks for `short_tokens` tokens, the others for 40). request: the worker reports an
    error of one request, and the others go on. pool: nothing fails, but blocks are so few that requests are preempted.

    Returns:
        started
        error_type: Exception that the caller sees, at start or later; empty if none.
        live_requests [requests]: Unfinished before step `fails_at_step`.
        ended_with_error, finished_before [requests]
        accepts_new_requests: Afterwards, by the same engine.
        preemptions
    """
    if where == "boot":
        return _boot(ctx)

    blocks = 8 if where == "pool" else 512
    with ctx.llm(max_num_seqs=8, max_model_len=96, num_gpu_blocks_override=blocks) as llm:
        engine = llm.llm_engine
        core = engine.engine_core
        for index in range(num_requests):
            params = greedy(short_tokens if index == 0 else 40)
            engine.add(engine.input_processor.process(str(index), f"Question number {index}", params))
        if where != "pool":
            _put_in_fault(core.executor, where, fails_at_step)
        reasons: dict[str, str] = {}
        live, error, preemptions = 0, "", 0
        # The failure is expected.
        with patch.object(logging.getLogger("engine.engine_core"), "disabled", True):
            for step in range(1, 400):
                if step == fails_at_step:
                    live = num_requests - len(reasons)
                outputs = core.step()
                preemptions += sum(o.num_preemptions for o in outputs)
                reasons |= {o.request_id: o.finish_reason for o in outputs if o.finish_reason}
                if core.is_dead or not core.has_unfinished():
                    break
        try:
            core.check_alive()
        except EngineDeadError as dead:
            error = type(dead).__name__
        ends = list(reasons.values())
        return Result(
            started=True,
            error_type=error,
            live_requests=live,
            ended_with_error=ends.count("error"),
            finished_before=ends.count("length"),
            accepts_new_requests=not core.is_dead,
            preemptions=preemptions,
        )


def _put_in_fault(executor: Any, where: str, fails_at_step: int) -> None:
    """Make the worker fail at a step, as torch would, or report an error of one request."""
    import torch

    submit, steps = executor.submit, count(1)

    def faulty(out: Any, *more: Any) -> Any:
        failing = next(steps) == fails_at_step
        if failing and where == "step":
            raise torch.OutOfMemoryError("tried to allocate 2.00 GiB")
        pending = submit(out, *more)
        if failing:
            pending().errors[out.scheduled[-1].request_id] = "its logits are NaN"
        return pending

    executor.submit = faulty


def _boot(ctx: Context) -> Result:
    error = ""
    try:
        with ctx.llm(num_gpu_blocks_override=None, kv_cache_memory_bytes=1 << 20, max_model_len=2048):
            pass
    except ConfigError as refusal:
        error = type(refusal).__name__
    counts = dict.fromkeys(("live_requests", "ended_with_error", "finished_before", "preemptions"), 0)
    return Result(started=not error, error_type=error, accepts_new_requests=not error, **counts)
