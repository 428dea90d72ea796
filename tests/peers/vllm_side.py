"""Run one workload through real vLLM and print what it did as JSON. Runs in vLLM's own environment.

Input (a file): {"model": folder, "engine": {EngineArgs}, "rounds": [[prompt token ids, ...], ...],
"sampling": {SamplingParams}}. Rounds run one after the other, so that later ones can hit the prefix
cache that earlier ones filled.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vllm import LLM, SamplingParams  # noqa: E402 - the environment must be set before the import


def counter(llm: LLM, name: str) -> int:
    """The sum of one of vLLM's Prometheus counters."""
    return sum(int(metric.value) for metric in llm.get_metrics() if metric.name == name)


def main(job_file: str, result_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    llm = LLM(job["model"], disable_log_stats=False, **job["engine"])
    params = SamplingParams(**job["sampling"])
    requests = []
    for prompts in job["rounds"]:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        for output in outputs:
            completion = output.outputs[0]
            requests.append(
                {
                    "token_ids": list(completion.token_ids),
                    "logprobs": [
                        {str(token): entry.logprob for token, entry in position.items()}
                        for position in completion.logprobs or []
                    ],
                    "finish_reason": completion.finish_reason,
                    "num_cached_tokens": output.num_cached_tokens,
                }
            )
    result = {
        "requests": requests,
        "preemptions": counter(llm, "vllm:num_preemptions"),
        "prefix_queries": counter(llm, "vllm:prefix_cache_queries"),
        "prefix_hits": counter(llm, "vllm:prefix_cache_hits"),
    }
    Path(result_file).write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
