"""Adapters of waiting requests are read while steps run: same outputs, exact counts, clear errors, no leaks."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import LLM, LoRARequest, SamplingParams
from engine.config import ConfigError, EngineArgs
from engine.core.lora_slots import LoRASlots
from engine.lora.manager import LoRAManager
from engine.resolve import resolve
from engine.trace.fork import fork
from engine.trace.reader import TraceReader
from tests.lora.conftest import OpenLLM
from tests.lora.peft_files import write_adapter

PROMPT = list(range(100, 148))
SIX = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)
COUNTERS = ("loads", "evictions", "waits", "reads", "prefetches")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("prefetch")
    return [write_adapter(place / f"a{n}", seed=n, targets=["q_proj", "v_proj"]) for n in range(1, 6)]


def load(llm: LLM, folders: list[Path]) -> list[LoRARequest]:
    return [llm.load_lora_adapter(folder.name, str(folder)) for folder in folders]


def manager_of(llm: LLM) -> LoRAManager:
    return llm.llm_engine.engine_core.executor.worker.lora


def counted(llm: LLM) -> Counter[str]:
    """The adapter counters of all following steps, added up."""
    core, total = llm.llm_engine.engine_core, Counter()
    step = core.step

    def counting() -> Any:
        outputs = step()
        total.update({name: getattr(core.scheduler.stats, f"num_lora_{name}") for name in COUNTERS})
        return outputs

    core.step = counting
    return total


def hold_reads(manager: LoRAManager) -> Callable[[], None]:
    """Let the thread wait before it reads; returns the function that lets it go on."""
    gate, load_folder = threading.Event(), manager._load

    def waiting(folder: Path) -> Any:
        if threading.current_thread() is not threading.main_thread():
            gate.wait()
        return load_folder(folder)

    manager._load = waiting
    return gate.set


def test_outputs_are_the_same_and_no_step_reads_a_folder(folders: list[Path], open_llm: OpenLLM) -> None:
    found, totals = [], []
    for prefetch in (0, 2):
        llm = open_llm(enable_lora=True, max_loras=1, max_cpu_loras=2, lora_prefetch=prefetch)
        loras = load(llm, folders)
        total = counted(llm)
        outputs = llm.generate([PROMPT] * 6, SIX, lora_request=[*loras, None], use_tqdm=False)
        found.append([(o.outputs[0].token_ids, o.outputs[0].logprobs) for o in outputs])
        totals.append({name: total[name] for name in COUNTERS})
    assert found[0] == found[1]
    assert len({tuple(tokens) for tokens, _ in found[0]}) == 6
    without, with_ = totals
    assert without == {"loads": 5, "evictions": 4, "waits": with_["waits"], "reads": 5, "prefetches": 0}
    assert (with_["loads"], with_["evictions"], with_["prefetches"]) == (5, 4, 4)
    assert with_["reads"] == 1, "the first request starts in the first step, so nothing runs before it"


def test_a_trace_counts_what_was_fetched_ahead_and_a_fork_decides_the_same(
    folders: list[Path], open_llm: OpenLLM, tmp_path: Path
) -> None:
    path = tmp_path / "run.itrace"
    llm = open_llm(enable_lora=True, max_loras=1, max_cpu_loras=2, lora_prefetch=2, trace=str(path))
    loras = load(llm, folders[:3])
    total = counted(llm)
    llm.generate([PROMPT] * 3, SIX, lora_request=loras, use_tqdm=False)
    llm.shutdown()
    traced = TraceReader(path).counter_totals()
    expected = {f"num_lora_{name}": total[name] for name in COUNTERS if total[name]}
    assert total["prefetches"] and {name: traced[name] for name in expected} == expected
    forked = fork(TraceReader(path), tmp_path / "fork.itrace", at=0)
    assert forked.failure is None
    assert TraceReader(forked.path).counter_totals() == traced


def test_a_free_slot_is_filled_before_its_request_gets_a_seat(folders: list[Path], open_llm: OpenLLM) -> None:
    llm = open_llm(enable_lora=True, max_loras=2, lora_prefetch=1, max_num_seqs=1)
    loras = load(llm, folders[:2])
    total = counted(llm)
    together = llm.generate([PROMPT] * 2, SIX, lora_request=loras, use_tqdm=False)
    assert (total["loads"], total["prefetches"], total["reads"]) == (2, 1, 0)
    alone = open_llm(enable_lora=True)
    for output, lora in zip(together, load(alone, folders[:2]), strict=True):
        [expected] = alone.generate([PROMPT], SIX, lora_request=lora, use_tqdm=False)
        assert output.outputs[0].token_ids == expected.outputs[0].token_ids


def start(llm: LLM, loras: list[LoRARequest | None]) -> None:
    """Queue a request for each adapter and run one step."""
    engine = llm.llm_engine
    for number, lora in enumerate(loras):
        engine.add(engine.input_processor.process(f"r{number}", PROMPT, SIX, lora_request=lora))
    engine.step()


def finish(llm: LLM) -> dict[str, Any]:
    engine, last = llm.llm_engine, {}
    while engine.has_unfinished():
        last |= {output.request_id: output for output in engine.step()}
    return last


@pytest.mark.parametrize("seats", [1, 8], ids=["into a slot", "into host memory"])
def test_a_waiting_request_is_aborted_while_its_adapter_is_read(
    folders: list[Path], open_llm: OpenLLM, seats: int
) -> None:
    slots = 2 if seats == 1 else 1
    llm = open_llm(enable_lora=True, max_loras=slots, max_cpu_loras=2, lora_prefetch=1, max_num_seqs=seats)
    first, second, third = load(llm, folders[:3])  # host memory: the second and the third
    release = hold_reads(manager_of(llm))
    start(llm, [second, first])
    llm.llm_engine.abort(["r1"])
    release()
    assert list(finish(llm)) == ["r0"]
    [output] = llm.generate([PROMPT], SIX, lora_request=first, use_tqdm=False)
    [again] = open_llm(enable_lora=True).generate([PROMPT], SIX, lora_request=first, use_tqdm=False)
    assert output.outputs[0].token_ids == again.outputs[0].token_ids
    for lora in (first, second, third):
        llm.unload_lora_adapter(lora.lora_name)
    manager = manager_of(llm)
    assert not manager.on_host and not manager.slot_of and not manager._prefetcher._under_way
    assert not LoRASlots.of(llm.llm_engine.engine_core.scheduler).host.keys


@pytest.mark.parametrize("replace", [False, True], ids=["unloaded", "replaced"])
def test_an_adapter_goes_while_it_is_read_and_serves_its_waiting_request(
    folders: list[Path], open_llm: OpenLLM, replace: bool
) -> None:
    llm = open_llm(enable_lora=True, max_loras=1, max_cpu_loras=2, lora_prefetch=1)
    first, second, _ = load(llm, folders[:3])
    release = hold_reads(manager_of(llm))
    start(llm, [second, first])
    if replace:
        llm.load_lora_adapter(first.lora_name, str(folders[3]), load_inplace=True)
    else:
        llm.unload_lora_adapter(first.lora_name)
    release()
    outputs = finish(llm)
    [expected] = open_llm(enable_lora=True).generate([PROMPT], SIX, lora_request=first, use_tqdm=False)
    assert outputs["r1"].outputs[0].token_ids == expected.outputs[0].token_ids
    for lora in llm.list_lora_adapters():
        llm.unload_lora_adapter(lora.lora_name)
    manager = manager_of(llm)
    assert not manager.on_host and not manager.slot_of and not manager._prefetcher._under_way


def test_a_folder_that_breaks_fails_its_requests_alone(
    tmp_path: Path, folders: list[Path], open_llm: OpenLLM, caplog: pytest.LogCaptureFixture
) -> None:
    broken = write_adapter(tmp_path / "broken", seed=9, targets=["q_proj"])
    llm = open_llm(enable_lora=True, max_loras=1, max_cpu_loras=1, lora_prefetch=1)
    lost, one, two = load(llm, [broken, *folders[:2]])
    os.truncate(broken / "adapter_model.safetensors", 100)
    outputs = llm.generate([PROMPT] * 4, SIX, lora_request=[one, lost, two, None], use_tqdm=False)
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "error", "length", "length"]
    assert "can no longer be read; load it again" in outputs[1].error
    assert "was not fetched ahead" in caplog.text and "has changed since it was loaded" in caplog.text


def test_the_thread_ends_with_the_engine(folders: list[Path], open_llm: OpenLLM) -> None:
    llm = open_llm(enable_lora=True, max_loras=1, max_cpu_loras=1, lora_prefetch=1)
    first, second, _ = load(llm, folders[:3])
    release = hold_reads(manager_of(llm))
    start(llm, [second, first])
    threads = [t for t in threading.enumerate() if t.name.startswith("lora-prefetch")]
    assert threads
    release()
    llm.shutdown()
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"lora_prefetch": -1}, "lora_prefetch must be an integer of at least 0, got -1"),
        ({"lora_prefetch": "two"}, "lora_prefetch must be an integer"),
        ({"lora_prefetch": 3, "max_cpu_loras": 2}, "lora_prefetch=3 is more than max_cpu_loras=2"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve(EngineArgs(enable_lora=True, **settings))
