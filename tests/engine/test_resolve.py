"""Settings: resolved defaults, and an error for everything that cannot work."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

import engine
from engine.config import CacheConfig, ConfigError, EngineArgs, TierConfig
from engine.config.combinations import EXCLUSIONS
from engine.core.sched_output import RequestInit
from engine.engine_core import EngineCore
from engine.sample.processors import SampleBatch
from engine.worker import kv_cache
from tests.engine.harness import TINY_LLAMA, request, run, tiny_settings, tokens

MakeEngine = Callable[..., EngineCore]
BLOCK_BYTES = 2 * 2 * 2 * 4 * 16 * 4  # layers, keys and values, kv heads, block size, head dim, float32


def test_none_becomes_vllms_default_for_a_cpu(make_engine: MakeEngine) -> None:
    config = make_engine(max_num_seqs=None, device="cpu").config
    assert config.scheduler.max_num_seqs == 256
    assert config.scheduler.max_num_batched_tokens == 4096
    assert config.scheduler.max_model_len == TINY_LLAMA["max_position_embeddings"]
    assert config.model.dtype == "float32"


@pytest.mark.parametrize(
    ("settings", "budget", "num_seqs"),
    [
        ({"max_num_batched_tokens": 100, "max_num_seqs": None}, 100, 100),
        ({"max_num_seqs": 5000, "num_gpu_blocks_override": 99}, 5000, 5000),
        ({"max_num_seqs": 3, "enable_chunked_prefill": False}, 4096, 3),
    ],
)
def test_sizes_that_are_not_given_follow_those_that_are(
    make_engine: MakeEngine, settings: dict[str, Any], budget: int, num_seqs: int
) -> None:
    scheduler = make_engine(**settings).config.scheduler
    assert (scheduler.max_num_batched_tokens, scheduler.max_num_seqs) == (budget, num_seqs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 0}, "block_size must be an integer of at least 1, got 0"),
        ({"block_size": 4.5}, "block_size must be an integer"),
        ({"max_model_len": 1}, "max_model_len must be an integer of at least 2"),
        ({"max_model_len": 257}, "257 is more than the 256 positions"),
        ({"max_num_seqs": 0}, "max_num_seqs must be an integer of at least 1"),
        ({"max_num_seqs": True}, "max_num_seqs must be an integer"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be an integer of at least 1"),
        (
            {"max_num_batched_tokens": 8, "max_num_seqs": 9},
            "max_num_batched_tokens=8 is less than max_num_seqs=9",
        ),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 100}, "less than max_model_len"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be"),
        ({"num_gpu_blocks_override": 1}, "num_gpu_blocks_override must be an integer of at least 2"),
        ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes must be"),
        ({"gpu_memory_utilization": 0.0}, r"share of memory in \(0, 1\], got 0.0"),
        ({"gpu_memory_utilization": 1.2}, r"share of memory in \(0, 1\], got 1.2"),
        ({"gpu_memory_utilization": "much"}, "share of memory"),
        ({"max_logprobs": -2}, "max_logprobs must be"),
        ({"seed": "x"}, "seed must be an integer"),
        ({"kv_cache_dtype": "fp4"}, "unsupported kv_cache_dtype 'fp4'; supported: auto, float32"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy must be one of fcfs, priority"),
        ({"device": "tpu"}, "device must be one of auto, cpu, cuda"),
        ({"load_format": "pickle"}, "load_format must be one of"),
        ({"attention_backend": "nope"}, "unknown attention backend 'nope'"),
        ({"scheduler_cls": "no_colon"}, "must look like 'package.module:Class'"),
        ({"scheduler_cls": "no.such.module:Thing"}, "scheduler_cls .* cannot be imported"),
        ({"logits_processors": ["json:JSONDecoder"]}, "has no add_request, remove_request, apply"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_work_is_refused_with_its_cause(
    make_engine: MakeEngine, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_engine(**settings)


@pytest.mark.parametrize(
    "one, other, message",
    [(one, other, message) for other, excluded in EXCLUSIONS.items() for one, message in excluded.items()],
    ids=lambda value: value if " " not in value else "",
)
def test_every_exclusion_of_the_table_is_refused_before_a_worker_starts(
    one: str, other: str, message: str, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each feature is switched on by the settings below; the message of the table comes back."""
    settings: dict[str, dict[str, Any]] = {
        "debug_port": {"debug_port": 0},
        "data_parallel": {"data_parallel_size": 2},
        "pipeline_parallel": {"pipeline_parallel_size": 2},
        "several_workers": {"tensor_parallel_size": 2},
        "remote_workers": {"distributed_executor_backend": "mp"},
        "images": {"limit_mm_per_prompt": {"image": 1}},
        "speculative": {"speculative_config": {"method": "ngram"}},
        "lora": {"enable_lora": True},
        "quantized": {"quantization": "int8"},
        "kv_events": {"kv_events_config": {"publisher": "memory"}},
        "kv_connector": {"kv_transfer_config": {"kv_connector": "TCPConnector"}},
        "kv_transfer": {"kv_transfer_config": {"kv_connector": "TCPConnector"}},
        "disk_tier": {"kv_offloading_backend": f"disk:{tmp_path}", "kv_offloading_size": 1},
        "no_prefix_caching": {"enable_prefix_caching": False},
        "swap": {"preemption_mode": "swap"},
        "no_swap_space": {"swap_space": 0},
        "offload": {"kv_offloading_size": 1},
        "whole_prompts": {"enable_chunked_prefill": False},
        "long_prefill_token_threshold": {"long_prefill_token_threshold": 8},
    }
    monkeypatch.setattr("engine.engine_core.executor_class", lambda _backend: pytest.fail("a worker starts"))
    if one == "host_blocks":  # known only when the workers have measured their memory
        with pytest.raises(ConfigError, match="sliding window"):
            CacheConfig(9, sliding_window=8, tiers=TierConfig(4, swap=True))
        return
    args = EngineArgs.create(**tiny_settings(model_dir), **settings[one], **settings[other])
    start = message.partition("{")[0]
    with pytest.raises(ConfigError, match=f"^{re.escape(start)}"):
        EngineCore.from_args(args)


def test_nothing_below_resolve_names_engine_args() -> None:
    """Executors, workers and everything below them are built from EngineConfig."""
    root = Path(engine.__file__).parent
    above = {
        "__init__.py",
        "fleet",
        "llm.py",
        "async_llm.py",
        "engine_core.py",
        "resolve.py",
        "frontend",
        "config",
        "server",
    }
    naming = [
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if file.relative_to(root).parts[0] not in above
        for node in ast.walk(ast.parse(file.read_text()))
        if "EngineArgs" in (getattr(node, "id", ""), getattr(node, "name", ""), getattr(node, "attr", ""))
    ]
    assert naming == []


@pytest.mark.parametrize(
    ("settings", "backend", "size"),
    [
        ({}, "the fastest that serves this model on cpu", r"\(max_num_seqs=4 full sequences\)"),
        (
            {"num_gpu_blocks_override": 20},
            "the fastest",
            r"20 blocks x 4 tokens.*\(num_gpu_blocks_override\)",
        ),
        (
            {"attention_backend": "sdpa", "kv_cache_memory_bytes": 100 * BLOCK_BYTES},
            r"sdpa \(as asked\)",
            r"100 blocks.*\(kv_cache_memory_bytes\)",
        ),
    ],
)
def test_the_log_says_which_backend_and_how_many_blocks_were_chosen_and_why(
    make_engine: MakeEngine,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
    backend: str,
    size: str,
) -> None:
    caplog.set_level("INFO", logger="engine.engine_core")
    make_engine(device="cpu", max_num_seqs=4, **settings)
    assert re.search(f"attention backend .*{backend}.*{size}", caplog.text)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu_is_refused(make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigError, match="sees no CUDA device"):
        make_engine(device="cuda")


def test_the_cache_takes_the_bytes_it_is_given(make_engine: MakeEngine) -> None:
    engine = make_engine(kv_cache_memory_bytes=100 * BLOCK_BYTES + 17)
    assert engine.config.cache.num_blocks == 100
    assert engine.executor.worker.runner.kv_cache.blocks.nbytes == 100 * BLOCK_BYTES


def test_a_cache_too_small_for_one_sequence_is_refused_with_the_size_it_needs(
    make_engine: MakeEngine,
) -> None:
    needed = 65 * BLOCK_BYTES  # 64 blocks of 4 tokens for 256 positions, and the null block
    with pytest.raises(ConfigError, match=f"enough for 252 tokens; raise it to at least {needed}"):
        make_engine(kv_cache_memory_bytes=needed - 1)
    assert make_engine(kv_cache_memory_bytes=needed).config.cache.num_blocks == 65


def test_on_a_cpu_the_cache_is_no_larger_than_its_sequences_or_the_cap(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make_engine(max_num_seqs=2).config.cache.num_blocks == 2 * 64 + 1
    monkeypatch.setattr(kv_cache, "CPU_CACHE_CAP", 90 * BLOCK_BYTES)
    assert make_engine(max_num_seqs=2).config.cache.num_blocks == 90
    monkeypatch.setattr(kv_cache, "CPU_CACHE_CAP", 10)
    assert make_engine(max_num_seqs=2).config.cache.num_blocks == 65, "one full sequence outranks the cap"


def test_on_a_cpu_the_cache_leaves_a_share_of_free_memory(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Memory:
        total = available = 160 * BLOCK_BYTES

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory)
    assert make_engine(gpu_memory_utilization=0.5).config.cache.num_blocks == 80
    with pytest.raises(ConfigError, match="raise gpu_memory_utilization or free memory"):
        make_engine(gpu_memory_utilization=0.25)


class SayTwelve:
    """A user's processor: allows only token 12, for requests that ask for logprobs."""

    def __init__(self, vocab_size: int, num_slots: int, device: torch.device) -> None: ...

    def add_request(self, slot: int, init: RequestInit) -> bool:
        return init.sampling_params.logprobs is not None

    def remove_request(self, slot: int) -> None: ...

    def apply(self, logits: Tensor, rows: np.ndarray, batch: SampleBatch) -> None:
        for row in rows:
            logits[row] = -torch.inf
            logits[row, 12] = 0.0


@pytest.mark.parametrize("spec", [SayTwelve, f"{__name__}:SayTwelve"], ids=["class", "dotted path"])
def test_a_users_logits_processor_is_called_for_those_who_want_it(make_engine: MakeEngine, spec: Any) -> None:
    plain = tokens(run(make_engine(), [request("b", [7, 8])]))
    engine = make_engine(logits_processors=[spec])
    said = tokens(run(engine, [request("a", [5, 6], logprobs=0), request("b", [7, 8])]))
    assert said == {"a": [12] * 8, "b": plain["b"]}


def test_an_unused_cache_takes_no_memory(make_engine: MakeEngine) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    num_blocks = (256 << 20) // BLOCK_BYTES
    config = make_engine().config
    cache = kv_cache.allocate(config.model, config.cache, num_blocks, torch.device("cpu"))
    assert cache.blocks.nbytes > 250 << 20
    assert process.memory_info().rss - before < 64 << 20
    assert not cache.kv[-1].any()
