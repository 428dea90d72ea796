"""Measure the cost of adapters: decode throughput with 0, 1 and several of them in a batch.

Three engines would differ by more than the adapters do, so one engine runs all variants in turns, a round of each
after the other, and other load affects all alike. Prompts are short; only decoding is timed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from app.bench.models import bench_model
from app.bench.timing import Tell
from engine.config import EngineArgs
from engine.exec.uniproc import worker_of
from engine.frontend.llm_engine import LLMEngine
from engine.lora.manager import LoRAManager
from engine.lora.request import LoRARequest
from engine.sampling_params import SamplingParams
from prep_common.text import counted

PROMPT_LEN = 8


@dataclass
class LoRAVariant:
    """One number of adapters, with the requests of the batch distributed among them."""

    num_adapters: int
    tokens_per_s: float = 0.0
    """Median over the rounds."""
    relative: float = 1.0
    """Speed relative to no adapters: the median of the ratios within a round."""


@dataclass
class LoRAReport:
    model: str
    batch_size: int
    output_len: int
    rank: int
    rounds: int
    adapter_bytes: int = 0
    """Bytes of one adapter on the device, padded to the rank of the slots."""
    load_ms: float = 0.0
    """Median time from the folder to host memory, checks included."""
    variants: list[LoRAVariant] = field(default_factory=list)
    interrupted: bool = False


def measure(
    tell: Tell,
    model: str,
    engine: dict[str, Any],
    *,
    counts: list[int],
    batch_size: int,
    output_len: int,
    rank: int,
    rounds: int,
) -> LoRAReport:
    """Measure random adapters of this rank on every linear layer; counts must begin with 0."""
    most = max(counts)
    settings = engine | {"enable_lora": True, "max_loras": max(1, most), "max_lora_rank": rank}
    settings |= {"max_cpu_loras": None, "max_num_seqs": batch_size}
    tell(f"loading {model}")
    with bench_model(model, settings) as (folder, arguments), tempfile.TemporaryDirectory() as scratch:
        llm = LLMEngine.from_args(EngineArgs.create(model=folder, **arguments))
        manager = worker_of(llm.engine_core).lora
        assert manager is not None
        report = LoRAReport(model, batch_size, output_len, rank, rounds)
        report.adapter_bytes = manager.num_slot_bytes // manager.config.max_loras
        adapters, loads = [], []
        for number in range(1, most + 1):
            path = random_adapter(manager, Path(scratch) / str(number), rank, number)
            start = time.perf_counter()
            llm.add_lora(request := LoRARequest(f"adapter-{number}", number, str(path)))
            loads.append(1000 * (time.perf_counter() - start))
            adapters.append(request)
        report.load_ms = statistics.median(loads) if loads else 0.0
        speeds: dict[int, list[float]] = {count: [] for count in counts}
        for number in range(rounds + 1):
            for count in counts:
                tell(f"round {number} of {rounds}, {counted(count, 'adapter')}")
                speed = _round(llm, adapters[:count], batch_size, output_len, f"{number}-{count}")
                if number:  # the first one warms up: slots are filled, decode steps recorded
                    speeds[count].append(speed)
        for count, rates in speeds.items():
            ratios = [ours / plain for ours, plain in zip(rates, speeds[counts[0]], strict=True)]
            report.variants.append(LoRAVariant(count, statistics.median(rates), statistics.median(ratios)))
        llm.shutdown()
    return report


def _round(
    llm: LLMEngine, adapters: list[LoRARequest], batch_size: int, output_len: int, label: str
) -> float:
    """Return tokens per second over the steps in which all requests decode."""
    params = SamplingParams(temperature=0, max_tokens=output_len + 1, ignore_eos=True, detokenize=False)
    for row in range(batch_size):
        prompt = [2 + (row * PROMPT_LEN + position) % 1000 for position in range(PROMPT_LEN)]
        lora = adapters[row % len(adapters)] if adapters else None
        llm.add(llm.input_processor.process(f"{label}-{row}", prompt, params, lora_request=lora))
    llm.step()
    start = time.perf_counter()
    while llm.has_unfinished():
        llm.step()
    return batch_size * output_len / (time.perf_counter() - start)


def random_adapter(manager: LoRAManager, folder: Path, rank: int, seed: int) -> Path:
    """Write an adapter of every linear layer in PEFT's format and return its folder, which must not exist."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, target in manager.targets.items():
        prefix = f"base_model.model.{name}"
        tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, target.in_features, generator=generator) / 100
        tensors[f"{prefix}.lora_B.weight"] = torch.randn(target.out_features, rank, generator=generator) / 100
    folder.mkdir()
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    (folder / "adapter_config.json").write_text(
        f'{{"r": {rank}, "lora_alpha": {rank}, "target_modules": "all-linear"}}'
    )
    return folder
