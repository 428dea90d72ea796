"""Names, labels and buckets of /metrics are those that vLLM 0.32 showed (tests/app/debugger/metrics/vllm.txt)."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from pathlib import Path

from starlette.testclient import TestClient

from engine.async_llm import AsyncLLM
from engine.sampling_params import SamplingParams

VLLM = Path(__file__).resolve().parents[1] / "app" / "debugger" / "metrics" / "vllm.txt"
MISSING = {
    "vllm:estimated_flops_per_gpu": "an estimate from the model's shape: prep bench throughput measures instead",
    "vllm:estimated_read_bytes_per_gpu": "the same",
    "vllm:estimated_write_bytes_per_gpu": "the same",
}
"""Metrics of vLLM that are not here, with the reason."""
README = Path(__file__).resolve().parents[2] / "engine" / "server" / "README.md"
OF_GUIDES = """
num_requests_waiting num_requests_waiting_by_reason num_requests_running kv_cache_usage_perc num_preemptions
request_num_preemptions request_prefill_kv_computed_tokens time_to_first_token_seconds inter_token_latency_seconds
request_time_per_output_token_seconds request_queue_time_seconds request_prefill_time_seconds
request_decode_time_seconds request_inference_time_seconds e2e_request_latency_seconds prefix_cache_hits
prefix_cache_queries external_prefix_cache_hits external_prefix_cache_queries mm_cache_hits mm_cache_queries
prompt_tokens generation_tokens request_success iteration_tokens_total spec_decode_num_drafts
spec_decode_num_draft_tokens spec_decode_num_accepted_tokens spec_decode_num_accepted_tokens_per_pos
lora_requests_info admission_rejections
"""
"""Names that interview guides use and vLLM 0.32 has."""
NOT_HERE = """
num_running_seqs gpu_cache_usage_perc num_swapped_seqs memory_usage kv_block_lifetime_seconds
kv_block_idle_before_evict_seconds kv_block_reuse_gap_seconds QueueWaitMs TTFTMs PrefixCacheHit AdmissionRejected
OOMCaught
"""
"""Names that guides use and /metrics lacks."""
OTHER_LABELS = {"vllm:cache_config_info": "vLLM lists all its settings"}


def families(text: str) -> dict[str, str]:
    """Name -> kind."""
    found = re.findall(r"^# TYPE (\S+?)(?:_total)? (\S+)$", text, re.MULTILINE)
    return {name: kind for name, kind in found if not name.endswith("_created")}


def labels(text: str) -> dict[str, set[str]]:
    found = defaultdict(set)
    for name, inside in re.findall(r"^([\w:]+)\{([^}]*)\}", text, re.MULTILINE):
        found[name] |= set(re.findall(r'(\w+)="', inside))
    return found


def buckets(text: str) -> dict[str, list[str]]:
    found = defaultdict(list)
    for name, bound in re.findall(r'^([\w:]+)_bucket\{.*?le="([^"]+)"', text, re.MULTILINE):
        found[name].append(bound)
    return found


def test_every_metric_of_vllm_is_here_or_has_a_reason(client: TestClient) -> None:
    client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3})
    ours, theirs = client.get("/metrics").text, VLLM.read_text()
    known = families(ours)
    for name, kind in families(theirs).items():
        if name.startswith(("vllm:", "http_requests")) and name not in MISSING:
            assert known.get(name) == kind, name
    assert families(theirs).keys() >= MISSING.keys() and not MISSING.keys() & known.keys()
    for name, wanted in labels(theirs).items():
        if name in labels(ours) and name not in OTHER_LABELS:
            assert labels(ours)[name] == wanted, name
    assert len(buckets(ours)) > 10
    for name, bounds in buckets(theirs).items():
        if name.startswith("vllm:"):
            assert buckets(ours)[name] == bounds, name


def test_every_metric_of_the_guides_is_here_or_in_the_readme_with_its_reason(client: TestClient) -> None:
    known = families(client.get("/metrics").text).keys()
    names = {f"vllm:{name}" for name in OF_GUIDES.split()}
    # A counter's name without _total, and a histogram whose name ends so.
    assert names <= known | {f"{name}_total" for name in known}
    explained = README.read_text().split("## Metrics that guides name")[1]
    for name in [*NOT_HERE.split(), *(name.removeprefix("vllm:") for name in MISSING if "flops" in name)]:
        assert f"vllm:{name}" not in known and name in explained, name


def test_levels_fall_when_the_last_request_is_aborted_and_no_step_follows(
    client: TestClient, llm: AsyncLLM
) -> None:
    async def leave() -> None:
        outputs = llm.generate("Hello", SamplingParams(max_tokens=900, ignore_eos=True))
        await anext(outputs)
        await outputs.aclose()
        await llm.reset_prefix_cache()  # runs after the abort

    asyncio.run(leave())
    text = client.get("/metrics").text
    for name in ("num_requests_running", "kv_cache_usage_perc"):
        assert f'vllm:{name}{{engine="0",model_name="shop"}} 0.0' in text


def test_responses_are_counted_by_route_whatever_path_a_client_invents(client: TestClient) -> None:
    for path in ("/v1/models", "/v1/models", "/nowhere/1", "/nowhere/2"):
        client.get(path)
    text = client.get("/metrics").text
    assert 'http_requests_total{handler="/v1/models",method="GET",status="2xx"} 2.0' in text
    assert (
        'http_requests_total{handler="none",method="GET",status="4xx"} 2.0' in text and "nowhere" not in text
    )
