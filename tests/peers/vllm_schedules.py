"""Replay recorded schedules in vLLM's own Scheduler: read jobs from stdin, print what vLLM did in each step.

Runs in vLLM's environment and imports no prep module. There is no model: each request follows its script.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ |= {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager


def make_scheduler(job: dict[str, Any], model: str) -> Scheduler:
    """Return a scheduler for the job's settings; vLLM counts the null block among its blocks as well."""
    limits = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 1_000_000}
    settings = {**limits, **job["scheduler"]}
    max_model_len = settings.pop("max_model_len")
    settings["max_num_seqs"] = min(
        settings["max_num_seqs"], settings["max_num_batched_tokens"]
    )  # vLLM demands it
    block_size, num_blocks = job["block_size"], job["num_blocks"] + 1
    config = VllmConfig(
        model_config=ModelConfig(model, max_model_len=max_model_len, skip_tokenizer_init=True),
        cache_config=CacheConfig(
            block_size=block_size,
            enable_prefix_caching=job["prefix_caching"],
            num_gpu_blocks_override=num_blocks,
        ),
        scheduler_config=SchedulerConfig(
            max_model_len=max_model_len, is_encoder_decoder=False, async_scheduling=False, **settings
        ),
        device_config=DeviceConfig("cpu"),
    )
    config.cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=8, dtype=torch.float32)
    pool = KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layer"], spec)])
    return Scheduler(config, pool, StructuredOutputManager(config), block_size)


def replay(job: dict[str, Any], model: str) -> list[dict[str, Any]]:
    """Return per step: rows [start, tokens] by request, preempted requests, free blocks, block tables."""
    scheduler = make_scheduler(job, model)
    hasher = get_request_block_hasher(job["block_size"], sha256) if job["prefix_caching"] else None
    scripts: dict[str, list[int]] = {}
    steps: list[dict[str, Any]] = []
    for action in job["actions"]:
        if action["do"] == "add":
            params = SamplingParams(
                temperature=0,
                max_tokens=action["max_tokens"],
                ignore_eos=action["ignore_eos"],
                **action["stop"],
            )
            params.update_from_generation_config({}, action["eos"])
            request = Request(
                action["id"],
                action["prompt"],
                params,
                None,
                arrival_time=float(len(scripts)),
                cache_salt=action["salt"],
                priority=action["priority"],
                block_hasher=hasher,
            )
            scripts[action["id"]] = action["script"]
            scheduler.add_request(request)
        elif action["do"] == "abort":
            for request_id in action["ids"]:
                scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        else:
            steps.append(step(scheduler, scripts))
    return steps


def step(scheduler: Scheduler, scripts: dict[str, list[int]]) -> dict[str, Any]:
    out = scheduler.schedule()
    rows, sampled = {}, []
    starts = {new.req_id: new.num_computed_tokens for new in out.scheduled_new_reqs}
    cached = out.scheduled_cached_reqs
    starts |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    tables = {name: scheduler.kv_cache_manager.get_block_ids(name)[0] for name in out.num_scheduled_tokens}
    for name, count in out.num_scheduled_tokens.items():
        request = scheduler.requests[name]
        rows[name] = [starts[name], count]
        ends = starts[name] + count >= request.num_tokens
        sampled.append([scripts[name][request.num_output_tokens]] if ends else [])
    names = list(out.num_scheduled_tokens)
    index = {name: position for position, name in enumerate(names)}
    scheduler.update_from_output(out, ModelRunnerOutput(names, index, sampled))
    return {
        "rows": rows,
        "preempted": sorted(out.preempted_req_ids or ()),
        "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "tables": tables,
    }


if __name__ == "__main__":
    request = json.load(sys.stdin)
    init_none_hash(sha256)
    answers = []
    for job in request["jobs"]:
        try:
            answers.append({"steps": replay(job, request["model"])})
        except Exception as error:  # reported with the job, and a failure of the comparison
            answers.append({"error": f"{type(error).__name__}: {error}"})
    print(json.dumps(answers))
