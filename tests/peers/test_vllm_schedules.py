"""The bank's schedules against vLLM's own Scheduler and BlockPool: same rows, preemptions, free blocks and reuse.

Every experiment of these topics that drives our core is recorded: each request, abort and step. vLLM's scheduler gets
the same requests. An item whose schedule differs is in KNOWN with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engine.core.scheduler import Scheduler
from engine.zoo.registry import MODELS
from quizzes.experiments import registry
from quizzes.experiments.context import Context
from quizzes.experiments.core_engine import CoreEngine
from quizzes.experiments.running import run_here
from quizzes.instance import Instance, draw
from quizzes.question_bank import load_bank

PYTHON = os.environ.get("PREP_VLLM_PYTHON", "")
TOPICS = ("attention", "batching", "lifecycle", "memory", "preemption", "prefix_cache", "scheduling")
SEEDS = range(3)
MAX_STEPS = 150
"""Longer recordings are cut here: a schedule that parts does so early."""
TOGETHER = (
    "of requests that start together with one prefix, ours computes it first and the others a step later"
)
"""vLLM caches a block when it schedules its computation, so the others share it in the same step."""
WHOLE_PROMPT = "ours takes the blocks of a whole prompt at admission, vLLM those of each chunk"
"""vLLM only checks at admission that the whole prompt fits (scheduler_reserve_full_isl)."""
EARLIER = f"{WHOLE_PROMPT}, so it preempts earlier"
RESET = "its replicas lose their caches from outside, which is not recorded"
MIN_TOKENS = (
    "vLLM's sampler masks stop tokens until min_tokens, so its scheduler need not ignore those of a script"
)
KNOWN = {
    "lifecycle.steps_and_blocks": WHOLE_PROMPT,
    "lifecycle.when_blocks_are_taken": WHOLE_PROMPT,
    "lifecycle.which_rule_stops": MIN_TOKENS,
    "preemption.tail_requests": WHOLE_PROMPT,
    "preemption.ttft_or_itl": EARLIER,
    "prefix_cache.aligned_prompt": TOGETHER,
    "prefix_cache.concurrent_memory": TOGETHER,
    "prefix_cache.enable_or_measure": WHOLE_PROMPT,
    "prefix_cache.kv_events": RESET,
    "prefix_cache.n_samples": TOGETHER,
    "prefix_cache.prefix_sharing_copies": TOGETHER,
    "prefix_cache.stampede": TOGETHER,
    "scheduling.chunks_beside_decodes": WHOLE_PROMPT,
    "scheduling.long_prefill_threshold": WHOLE_PROMPT,
    "scheduling.no_phases": WHOLE_PROMPT,
    "scheduling.prefill_only_pool": WHOLE_PROMPT,
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON, reason="PREP_VLLM_PYTHON names no Python with vLLM; see tests/peers/README.md"
    ),
]


class Recorder(CoreEngine):
    """A core engine that records what it was asked to do and what it did."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        own = {
            "num_blocks",
            "block_size",
            "enable_prefix_caching",
            "cache",
            "tiers",
            "make_scheduler",
            "trace",
        }
        self.job: dict[str, Any] = {
            "num_blocks": settings.get("num_blocks", 10_000),
            "block_size": settings.get("block_size", 16),
            "prefix_caching": settings.get("enable_prefix_caching", True),
            "scheduler": {name: value for name, value in settings.items() if name not in own},
            "actions": [],
        }
        self.is_vllms = (
            type(self.scheduler) is Scheduler and not settings.get("tiers") and not settings.get("cache")
        )
        self.did: list[dict[str, Any]] = []
        self.tables: dict[str, list[int]] = {}

    def add_request(self, request: Any, script: list[int]) -> Any:
        self.is_vllms &= request.lora_key is None
        added = super().add_request(request, script)
        action = {
            "do": "add",
            "id": request.request_id,
            "prompt": list(request.prompt_token_ids),
            "max_tokens": request.sampling_params.max_tokens,
            "script": script,
            "eos": next(iter(request.eos_token_ids), None),
            "stop": {
                name: getattr(request.sampling_params, name) for name in ("min_tokens", "stop_token_ids")
            },
            "ignore_eos": request.sampling_params.ignore_eos,
            "salt": request.cache_salt,
            "priority": request.priority,
        }
        self.job["actions"].append(action)
        return added

    def abort(self, *request_ids: str) -> None:
        super().abort(*request_ids)
        self.job["actions"].append({"do": "abort", "ids": list(request_ids)})

    def step(self) -> Any:
        view = super().step()
        if len(self.did) < MAX_STEPS:
            self.job["actions"].append({"do": "step"})
            self.did.append(
                {
                    "rows": {name: list(row) for name, row in view.rows.items()},
                    "preempted": sorted(view.preempted),
                    "free": view.free_blocks,
                    "tables": self.tables,
                }
            )
        return view

    def _answer(self, out: Any) -> Any:
        requests = self.scheduler.requests
        self.tables = {
            row.request_id: [block.block_id for block in requests[row.request_id].blocks]
            for row in out.scheduled
        }
        return super()._answer(out)


class Recording(Context):
    """A context whose core engines record."""

    def core(self, *, traced: bool = False, **settings: Any) -> CoreEngine:
        engine = Recorder(**settings)
        self.__dict__.setdefault("engines", []).append(engine)
        return engine


def record(instance: Instance) -> list[Recorder]:
    """Return the engines that the item's experiment drove, those that vLLM's scheduler can follow."""
    question = instance.question
    assert question.experiment is not None
    experiment = registry.get(question.experiment.run)
    context = Recording(seed=0)
    experiment.run(context, **experiment.check(instance.run_args()))
    return [engine for engine in context.__dict__.get("engines", []) if engine.is_vllms and engine.did]


def _drives_the_core(run: str) -> bool:
    """Whether it makes core engines. The lab of policies makes them with queues that vLLM lacks."""
    if run == "scheduling.policy_lab":
        return False
    return registry.get(run).determinism == "exact" and "ctx.core(" in registry.source_file(run).read_text(
        "utf-8"
    )


@cache
def jobs() -> list[tuple[str, int, Recorder]]:
    """Return (item, seed, engine) for every engine of every item."""
    bank, found = load_bank(), []
    for entry in bank:
        question = bank.question(entry.id)
        if entry.topic in TOPICS and question.experiment and _drives_the_core(question.experiment.run):
            for seed in SEEDS:
                found += [(entry.id, seed, engine) for engine in record(draw(question, seed))]
    return found


def ask_vllm(asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    script = Path(__file__).with_name("vllm_schedules.py")
    done = subprocess.run(
        [PYTHON, str(script)],
        input=json.dumps({"model": str(MODELS / "shop"), "jobs": asked}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return list(json.loads(done.stdout))


@cache
def answers() -> list[dict[str, Any]]:
    return ask_vllm([engine.job for _, _, engine in jobs()])


def first_difference(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], *names: str) -> str:
    """Return the first step whose values differ, or ""."""
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        for name in names:
            if mine[name] != other[name]:
                return f"step {number}: {name} {mine[name]}, vLLM {other[name]}"
    return ""


def test_the_schedules_are_vllms_or_the_difference_is_known() -> None:
    assert len({item for item, _, _ in jobs()}) >= 30
    found: dict[str, str] = {}
    for (item, seed, engine), answer in zip(jobs(), answers(), strict=True):
        assert "error" not in answer, (item, seed, answer["error"])
        if text := first_difference(engine.did, answer["steps"], "rows", "preempted", "free"):
            found.setdefault(item, f"seed {seed}, {text}")
    assert found.keys() == KNOWN.keys(), json.dumps(found, indent=1)


def test_known_differences_change_neither_rows_nor_what_is_computed_and_held_in_all() -> None:
    for (item, seed, engine), answer in zip(jobs(), answers(), strict=True):
        if KNOWN.get(item) == WHOLE_PROMPT:
            assert first_difference(engine.did, answer["steps"], "rows", "preempted") == "", (item, seed)
        if KNOWN.get(item) == TOGETHER:
            assert computed(engine.did) == computed(answer["steps"]), (item, seed)
        if item in (
            "prefix_cache.concurrent_memory",
            "prefix_cache.n_samples",
            "prefix_cache.aligned_prompt",
        ):
            assert fewest_free(engine.did) == fewest_free(answer["steps"]), (item, seed)


def computed(steps: list[dict[str, Any]]) -> int:
    return sum(count for step in steps for _, count in step["rows"].values())


def fewest_free(steps: list[dict[str, Any]]) -> int:
    return min(int(step["free"]) for step in steps)


def expected(item: str, seed: int) -> tuple[Instance, dict[str, Any]]:
    instance = draw(load_bank().question(item), seed)
    assert instance.question.experiment is not None
    result = run_here(instance.question.experiment.run, instance.run_args())
    return instance, instance.expected(result)


def test_tables_of_reused_blocks_are_vllms() -> None:
    """vLLM's order for attention.reused_table; a slot in a table of blocks that were never used."""
    checked = set()
    for (item, seed, _), answer in zip(jobs(), answers(), strict=True):
        if item not in ("attention.reused_table", "attention.slot_of_position"):
            continue
        instance, right = expected(item, seed)
        table = answer["steps"][-1]["tables"]["last"]
        checked.add(item)
        if item == "attention.reused_table":
            assert right["table"] == table, (seed, right, table)
        else:
            args = instance.run_args()
            block, offset = divmod(args["position"], args["block_size"])
            assert right["slot"] == table[block] * args["block_size"] + offset, (seed, right, table)
    assert len(checked) == 2


def test_cached_blocks_are_reused_in_vllms_order() -> None:
    """The order of prefix_cache.eviction_order, read from the table of vLLM's last request."""
    for (item, seed, _), answer in zip(jobs(), answers(), strict=True):
        if item != "prefix_cache.eviction_order":
            continue
        instance, right = expected(item, seed)
        names: dict[int, str] = {}
        for step in answer["steps"]:
            for request_id, table in step["tables"].items():
                if request_id.startswith("chain"):
                    chain = int(request_id.removeprefix("chain"))
                    full = table[: instance.params["chains"][chain]]
                    names |= {block: f"{'abc'[chain]}{n}" for n, block in enumerate(full, 1)}
        last = answer["steps"][-1]
        taken = [names[block] for block in last["tables"]["last"] if block in names]
        assert right["reused"] == taken, (seed, right, taken)
        assert right["free"] == last["free"], (seed, right, last)
