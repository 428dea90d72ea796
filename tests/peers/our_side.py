"""Run jobs (`drive.py`) through our engine, and count what it did under the names that `vllm_side.py` uses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from engine import LLM, SamplingParams
from engine.frontend.beam_search import BeamSearchParams
from engine.lora.request import LoRARequest
from engine.sampling_params import StructuredOutputsParams
from tests.peers.drive import run_job

NAMES = SimpleNamespace(
    LoRARequest=LoRARequest,
    BeamSearchParams=BeamSearchParams,
    SamplingParams=SamplingParams,
    StructuredOutputsParams=StructuredOutputsParams,
)
COUNTERS = {
    "preemptions": "num_preempted",
    "prefix_queries": "prefix_cache_queries",
    "prefix_hits": "prefix_cache_hits",
    "drafts": "num_drafts",
    "draft_tokens": "num_draft_tokens",
    "accepted_tokens": "num_accepted_tokens",
}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """One job in an LLM of its own."""
    with LLM(job["model"], **job["engine"]) as llm:
        counters = _count_steps(llm)
        result = run_job(job, llm, NAMES)
    result["counters"] = counters
    return result


def _count_steps(llm: LLM) -> dict[str, int]:
    """Sums over the steps to come: StepStats has flows of one step."""
    core, counters = llm.llm_engine.engine_core, dict.fromkeys(COUNTERS, 0)
    step = core.step

    def counted() -> Any:
        outputs = step()
        for name, ours in COUNTERS.items():
            counters[name] += getattr(core.scheduler.stats, ours)
        return outputs

    core.step = counted
    return counters
