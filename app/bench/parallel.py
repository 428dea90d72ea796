"""Compare one process with several ranks: tokens, messages between ranks, and idle pipeline stages."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, cast

from app.bench.timing import Tell
from engine import LLM, SamplingParams
from engine.engine_core import EngineCore
from engine.sim.hardware import LINKS
from engine.sim.interconnect import step_traffic


@dataclass
class ParallelReport:
    model: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    num_requests: int
    num_steps: int = 0
    same_tokens: bool = False
    collectives_per_step: float = 0.0
    bytes_per_token: float = 0.0
    """Bytes that the answering rank sends per token computed."""
    bubble: float = 0.0
    """Share of the pipeline's slots without a step."""
    seconds_alone: float = 0.0
    seconds_split: float = 0.0
    decode_step_ms_by_link: dict[str, float] = field(default_factory=dict)
    """Link -> milliseconds of communication in one decode step of all requests, without overlap."""
    interrupted: bool = False


def measure(
    tell: Tell, model: str, engine: dict[str, Any], *, num_requests: int, output_len: int
) -> ParallelReport:
    """Run the same requests in both, counting messages in every step of the split engine."""
    tensor, pipeline = engine["tensor_parallel_size"], engine["pipeline_parallel_size"]
    report = ParallelReport(model, tensor, pipeline, num_requests)
    prompts = [[3 + number % 40 + position for position in range(24)] for number in range(num_requests)]
    params = SamplingParams(max_tokens=output_len, temperature=1.0, seed=0, ignore_eos=True)
    alone = {**engine, "tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    said, seconds = [], []
    for options in (alone, engine):
        ranks = f"tensor {options['tensor_parallel_size']}, pipeline {options['pipeline_parallel_size']}"
        tell(f"{model}, {ranks}")
        with LLM(model, **options) as llm:
            llm.generate(prompts[:1], params, use_tqdm=False)  # warm
            llm.reset_prefix_cache()
            if options is engine:
                _count(llm, report)
            began = perf_counter()
            outputs = llm.generate(prompts, params, use_tqdm=False)
            seconds.append(perf_counter() - began)
            said.append([output.outputs[0].token_ids for output in outputs])
            shape = llm.llm_engine.engine_core.config.model
    report.seconds_alone, report.seconds_split = seconds
    report.same_tokens = said[0] == said[1]
    traffic = step_traffic(
        hidden_size=shape.hidden_size,
        num_layers=shape.num_hidden_layers,
        vocab_size=shape.vocab_size,
        value_bytes=4 if shape.dtype == "float32" else 2,
        num_tokens=num_requests,
        num_sampled=num_requests,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
    )
    report.decode_step_ms_by_link = {name: traffic.seconds(link) * 1e3 for name, link in LINKS.items()}
    return report


def _count(llm: LLM, report: ParallelReport) -> None:
    """Add up the communication counters of every following step of this engine."""
    core = cast(EngineCore, llm.llm_engine.engine_core)
    step = core.step
    totals: Counter[str] = Counter()

    def counted() -> Any:
        outputs = step()
        stats = core.scheduler.stats
        if stats.num_scheduled_tokens:
            report.num_steps += 1
            for name in ("num_collectives", "collective_bytes", "num_scheduled_tokens", "num_idle_stages"):
                totals[name] += getattr(stats, name)
            report.collectives_per_step = totals["num_collectives"] / report.num_steps
            report.bytes_per_token = totals["collective_bytes"] / totals["num_scheduled_tokens"]
            report.bubble = totals["num_idle_stages"] / (report.num_steps * report.pipeline_parallel_size)
        return outputs

    core.step = counted  # type: ignore[method-assign]
