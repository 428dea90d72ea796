"""E14: the path of a prompt through the live engine, from `LLM.generate` to text, as the calls really come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from quizzes.experiments import Context, experiment
from quizzes.experiments.lifecycle._spy import Log, watch


@dataclass(frozen=True)
class CallOrder:
    """Each stage once, in the order of its first call."""

    order: list[str]
    """Of: request_id, tokenize, validate, queue, schedule, prefix_lookup, blocks, forward, update, detokenize."""
    text: str
    num_forward: Annotated[int, "calls"]
    num_schedule: Annotated[int, "calls"]
    output_tokens: Annotated[int, "tokens"]


@experiment("E14")
def call_order(
    ctx: Context,
    *,
    max_tokens: Annotated[int, Field(ge=1, le=64)] = 8,
) -> CallOrder:
    """One prompt through the shop model, with every stage watched."""
    from engine import SamplingParams

    log, counts = Log(), {"forward": 0, "schedule": 0}

    def count(stage: str) -> None:
        counts[stage] += 1
        log.write(stage)

    with ctx.llm(max_num_seqs=4, traced=True) as llm:
        engine = llm.llm_engine
        scheduler, kv = engine.engine_core.scheduler, engine.engine_core.scheduler.kv
        watch(engine.tokenizer, "encode", lambda: log.write("tokenize"))
        watch(engine.input_processor, "process", lambda: log.write("request_id"))
        watch(scheduler, "add", lambda: log.write("queue"))
        watch(scheduler, "schedule", lambda: count("schedule"))
        watch(kv, "match", lambda: log.write("prefix_lookup"))
        watch(kv, "admit", lambda: log.write("blocks"))
        watch(engine.engine_core.executor, "execute", lambda: count("forward"))
        watch(scheduler, "update", lambda: log.write("update"))
        watch(engine.output_processor, "update", lambda: log.write("detokenize"))
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        (output,) = llm.generate("Do you have this manga?", params, use_tqdm=False)
    return CallOrder(
        order=log.first_order(),
        text=output.outputs[0].text,
        num_forward=counts["forward"],
        num_schedule=counts["schedule"],
        output_tokens=len(output.outputs[0].token_ids),
    )
