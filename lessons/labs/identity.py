"""Generate with the shipped model on a learner's part, and compare the tokens with those of the engine alone."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from engine.core.sched_output import SchedulerOutput
from engine.core.scheduler import Scheduler
from lessons.course.checking import Failed, Learner
from lessons.course.lesson_files import find_lab
from prep_common.sandbox import Guest
from prep_common.text import counted

PROMPTS = tuple(f"Order {number} of the shop has {number + 3} volumes." for number in range(1, 9))
SETTINGS: dict[str, Any] = {
    "num_gpu_blocks_override": 10,
    "block_size": 16,
    "max_model_len": 96,
    "max_num_batched_tokens": 48,
    "max_num_seqs": 6,
    "enable_prefix_caching": False,
}
"""So few blocks that requests are preempted, and so small a budget that prompts are cut into chunks."""
MAX_TOKENS = 40


def same_tokens(lab: str, guest: Guest) -> str:
    """Return a sentence about equal greedy outputs. Raises Failed for the first request whose tokens differ."""
    behind_engine = import_module(f"lessons.{find_lab(lab).name}.checks").behind_engine

    num_preemptions = 0

    class Behind(Scheduler):
        """Factory in place of the scheduler class: it makes the scheduler that runs on the learner's part."""

        def __new__(cls, config: Any, cache: Any, **options: Any) -> Scheduler:  # type: ignore[misc]
            made: Scheduler = behind_engine(Learner(guest), config, cache)
            schedule = made.schedule

            def counting() -> SchedulerOutput:
                nonlocal num_preemptions
                out = schedule()
                num_preemptions += len(out.preempted_request_ids)
                return out

            made.schedule = counting  # type: ignore[method-assign]
            return made

    alone, yours = _generate(Scheduler), _generate(Behind)
    for number, (mine, right) in enumerate(zip(yours, alone, strict=True)):
        if mine != right:
            raise Failed(f"prompt {number} of the model: tokens {mine}; alone the engine generates {right}")
    total = sum(map(len, yours))
    return (
        f"{counted(total, 'token')} of {counted(len(yours), 'request')} of the shipped model are those of the engine "
        f"alone, {counted(num_preemptions, 'preemption')} included"
    )


def _generate(scheduler: type) -> list[list[int]]:
    """Return the tokens of each prompt."""
    from engine import LLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    with LLM("shop", scheduler_cls=scheduler, **SETTINGS) as llm:
        outputs = llm.generate(list(PROMPTS), params, use_tqdm=False)
        return [list(each.outputs[0].token_ids) for each in outputs]
