"""Everything at once: adapters, drafts, grammars, swapping, aborts, n > 1 and images on one crowded engine.

Whatever happens around it, a request says what it says alone on a plain engine, and when all have gone, nothing is
left of them.
"""

from __future__ import annotations

import gc
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from engine import LLM, SamplingParams
from engine.lora.request import LoRARequest
from engine.outputs import RequestOutput
from engine.sampling_params import RequestOutputKind, StructuredOutputsParams
from engine.zoo.corpus import draw_cases
from tests.lora.peft_files import write_adapter
from tests.seeds import seeds

ROOT = Path(__file__).resolve().parents[2]
ADAPTERS = (None, "first", "second", "third")
SCHEMA = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 12}, "stars": {"enum": [1, 2, 3]}},
    "required": ["title", "stars"],
    "additionalProperties": False,
}
PRICE = r"(about |exactly )?[1-9][0-9]{1,2} yen\."
PLAIN: dict[str, Any] = {
    "model": "shop",
    "max_model_len": 1024,
    "enable_lora": True,
    "max_loras": 2,
    "max_cpu_loras": 3,
    "limit_mm_per_prompt": {"image": 1},
}
CROWDED: dict[str, Any] = {
    **PLAIN,
    "block_size": 4,
    "num_gpu_blocks_override": 240,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 192,
    "swap_space": 0.02,
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    "scheduling_policy": "priority",
    "max_cpu_loras": 2,
    "lora_prefetch": 1,
    "debug_checks": True,
}


@dataclass
class Ask:
    """One request of the workload."""

    prompt: Any
    params: SamplingParams
    adapter: str | None
    priority: int


def random_asks(count: int, seed: int) -> list[Ask]:
    rng = random.Random(seed)
    # Every request must fit into the crowded engine's cache alone: 2,000 characters are fewer than 880 tokens.
    prompts = [case.prompt[:2000] for case in draw_cases(count // 2, seed=seed, rows=(2, 4))]
    asks = []
    for index in range(count):
        prompt: Any = rng.choice(prompts)
        if rng.random() < 0.1:
            pixels = np.random.default_rng(rng.randrange(3)).integers(0, 256, (16, 16, 3), dtype=np.uint8)
            prompt = {"prompt": f"<image> {prompt[-200:]}", "multi_modal_data": {"image": pixels}}
        elif rng.random() < 0.1:
            prompt = {"prompt": prompt, "cache_salt": "tenant"}
        structure = rng.choice(
            [None, None, None, {"json": SCHEMA}, {"regex": PRICE}, {"choice": ["yes", "no"]}]
        )
        warm = rng.random() < 0.5
        asks.append(
            Ask(
                prompt,
                SamplingParams(
                    temperature=rng.choice([0.7, 1.0]) if warm else 0.0,
                    top_p=rng.choice([1.0, 0.9]),
                    repetition_penalty=rng.choice([1.0, 1.0, 1.1]),
                    n=rng.choice([1, 1, 2]) if warm else 1,
                    seed=index,
                    max_tokens=rng.choice([3, 12, 70]),
                    ignore_eos=structure is None and rng.random() < 0.7,
                    logprobs=rng.choice([None, None, 1]),
                    structured_outputs=structure and StructuredOutputsParams(**structure),
                ),
                rng.choice(ADAPTERS),
                rng.choice([0, 0, 1]),
            )
        )
    return asks


@pytest.fixture(scope="module")
def loras(tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, LoRARequest | None]:
    """Three adapters of other ranks, and None for the base model."""
    folder = tmp_path_factory.mktemp("adapters")
    requests: dict[str | None, LoRARequest | None] = {None: None}
    for index, name in enumerate(ADAPTERS[1:], start=1):
        write_adapter(folder / name, seed=index, rank=4 * index)
        requests[name] = LoRARequest(name, index, str(folder / name))
    return requests


@pytest.fixture(scope="module")
def plain() -> Iterator[LLM]:
    with LLM(**PLAIN) as llm:
        yield llm


def alone(llm: LLM, ask: Ask, loras: dict[str | None, LoRARequest | None]) -> RequestOutput:
    (output,) = llm.generate([ask.prompt], ask.params, lora_request=loras[ask.adapter], use_tqdm=False)
    return output


class Crowd:
    """Drives one engine step by step: requests arrive, some are aborted, all others are collected."""

    def __init__(self, llm: LLM, loras: dict[str | None, LoRARequest | None], seed: int) -> None:
        self.engine, self.loras = llm.llm_engine, loras
        for request in loras.values():
            if request is not None:
                self.engine.add_lora(request)
        self.rng = random.Random(seed)
        self.finished: dict[str, RequestOutput] = {}
        self.aborted: set[str] = set()
        self.num_preemptions = self.num_swapped = self.num_accepted = self.num_masked = self.num_waits = 0
        self.num_prefetches = 0

    def run(self, asks: list[Ask]) -> None:
        waiting = [(str(index), ask) for index, ask in enumerate(asks)]
        live: list[str] = []
        while waiting or self.engine.has_unfinished():
            for _ in range(min(len(waiting), self.rng.choice([0, 1, 3, 5]))):
                name, ask = waiting.pop(0)
                submitted = self.engine.input_processor.process(
                    name,
                    ask.prompt,
                    replace(ask.params, output_kind=RequestOutputKind.FINAL_ONLY),
                    priority=ask.priority,
                    lora_request=self.loras[ask.adapter],
                )
                self.engine.add(submitted)
                live.append(name)
            if live and self.rng.random() < 0.03:
                victim = self.rng.choice(live)
                self.aborted.add(victim)
                self.collect(self.engine.abort([victim]))
            self.collect(self.engine.step())
            live = [name for name in live if name not in self.finished]
            self.count()

    def collect(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            assert output.finished and output.request_id not in self.finished
            self.finished[output.request_id] = output

    def count(self) -> None:
        stats = self.engine.engine_core.scheduler.stats
        self.num_preemptions += stats.num_preempted
        self.num_swapped += stats.num_blocks_copied_in
        self.num_accepted += stats.num_accepted_tokens
        self.num_masked += stats.num_masked_rows
        self.num_waits += stats.num_lora_waits
        self.num_prefetches += stats.num_lora_prefetches


def check_structure(ask: Ask, output: RequestOutput) -> None:
    structure = ask.params.structured_outputs
    for completion in output.outputs:
        if structure is None or completion.finish_reason != "stop":
            continue
        if structure.json is not None:
            assert json.loads(completion.text)["stars"] in (1, 2, 3)
        elif structure.regex is not None:
            assert re.fullmatch(PRICE, completion.text)
        else:
            assert completion.text in ("yes", "no")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *seeds(4, 2)])
def test_in_a_crowd_everybody_says_what_he_says_alone(
    plain: LLM, loras: dict[str | None, LoRARequest | None], seed: int
) -> None:
    asks = random_asks(40, seed)
    with LLM(**CROWDED) as llm:
        crowd = Crowd(llm, loras, seed)
        crowd.run(asks)
        core = llm.llm_engine.engine_core
        core.scheduler.check_integrity()
        assert core.scheduler.kv.usage == 0 and not core.scheduler.requests
        if seed == 1:  # not every crowd has everything
            assert crowd.num_accepted and crowd.num_masked and crowd.num_waits
            assert crowd.num_prefetches
            assert crowd.num_preemptions and crowd.num_swapped
    for index, ask in enumerate(asks):
        output = crowd.finished[str(index)]
        if str(index) in crowd.aborted:
            continue
        expected = alone(plain, ask, loras)
        assert output.error is None and expected.error is None
        assert [c.token_ids for c in output.outputs] == [c.token_ids for c in expected.outputs], ask
        assert [c.finish_reason for c in output.outputs] == [c.finish_reason for c in expected.outputs]
        check_structure(ask, output)


@pytest.mark.slow
def test_memory_returns_to_the_start_after_300_requests(
    loras: dict[str | None, LoRARequest | None],
) -> None:
    """In a process of its own: what other tests left in the heap moves it by more than a leak would."""
    folders = {name: request.lora_path for name, request in loras.items() if name and request}
    program = (
        "import json, sys; from tests.engine.test_everything_at_once import growth; "
        "print(json.dumps(growth(json.loads(sys.argv[1]))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(folders)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    grown = json.loads(done.stdout.splitlines()[-1])
    assert grown["bytes"] < 4 << 20
    assert grown["objects"] < 1000
    assert grown["usage"] == 0


def growth(folders: dict[str, str]) -> dict[str, float]:
    """Count what 300 requests leave behind after the first hundred. folders: adapters by name.

    Bytes are those that the heap holds: the memory of the process swings by 70 MB.
    """
    loras: dict[str | None, LoRARequest | None] = {None: None}
    loras |= {name: LoRARequest(name, index, path) for index, (name, path) in enumerate(folders.items(), 1)}
    with LLM(**{**CROWDED, "debug_checks": False}) as llm:
        Crowd(llm, loras, 0).run(random_asks(100, 0))  # caches fill, kernels compile
        gc.collect()
        before, objects = heap_bytes(), len(gc.get_objects())
        for seed in range(1, 4):
            Crowd(llm, loras, seed).run(random_asks(100, seed))
        gc.collect()
        scheduler = llm.llm_engine.engine_core.scheduler
        scheduler.check_integrity()
        return {
            "bytes": heap_bytes() - before,
            "objects": len(gc.get_objects()) - objects,
            "usage": scheduler.kv.usage,
        }


def heap_bytes() -> int:
    info = psutil.heap_info()
    return info.heap_used + info.mmap_used
