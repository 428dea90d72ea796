"""Adapters come and go while requests run, and what they leave behind is never read again."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from engine import AsyncLLM, EngineArgs, LoRARequest, SamplingParams
from engine.core.lora_slots import LoRASlots
from engine.frontend.input_processor import InvalidRequestError
from tests.lora.conftest import OpenLLM
from tests.lora.peft_files import write_adapter

PROMPT = list(range(100, 148))
TEN = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)


def text_of(llm, lora=None, params=TEN):
    [output] = llm.generate(PROMPT, params, lora_request=lora, use_tqdm=False)
    return output.outputs[0].token_ids, output.num_cached_tokens


def test_more_adapters_than_slots_wait_and_all_finish(tmp_path: Path, open_llm: OpenLLM) -> None:
    loras = [
        LoRARequest(f"a{n}", n, str(write_adapter(tmp_path / f"a{n}", seed=n, targets=["q_proj", "v_proj"])))
        for n in range(1, 6)
    ]
    llm = open_llm(enable_lora=True, max_loras=2, max_cpu_loras=3)
    stats = []
    step = llm.llm_engine.engine_core.step
    llm.llm_engine.engine_core.step = lambda: [
        step(),
        stats.append(llm.llm_engine.engine_core.scheduler.stats),
    ][0]
    together = llm.generate([PROMPT] * 6, TEN, lora_request=[*loras, None], use_tqdm=False)
    assert sum(s.num_lora_loads for s in stats) == 5
    assert sum(s.num_lora_evictions for s in stats) == 3
    assert sum(s.num_lora_waits for s in stats) > 0
    manager = llm.llm_engine.engine_core.executor.worker.lora
    assert len(manager.on_host) == 3 and len(manager.slot_of) == 2
    for lora, output in zip([*loras, None], together, strict=True):
        assert text_of(llm, lora)[0] == output.outputs[0].token_ids


def test_an_adapter_is_loaded_while_another_request_runs(adapters: list[Path], open_llm: OpenLLM) -> None:
    llm = open_llm(enable_lora=True, max_loras=2)
    first = llm.load_lora_adapter("one", str(adapters[0]))
    expected, _ = text_of(llm, first)
    got: list[int] = []
    for number, delta in enumerate(llm.stream(PROMPT, TEN, lora_request=first)):
        got += delta.outputs[0].token_ids
        if number == 3:
            second = llm.load_lora_adapter("two", str(adapters[1]))
            assert text_of(llm, second)[0] != expected
            llm.unload_lora_adapter("one")
    assert got == expected, "an unloaded adapter still serves its unfinished requests"
    manager = llm.llm_engine.engine_core.executor.worker.lora
    assert len(manager.on_host) == 1 and len(manager.slot_of) == 1
    assert [request.lora_name for request in llm.list_lora_adapters()] == ["two"]


def test_prefixes_are_shared_within_an_adapter_and_never_across(
    adapters: list[Path], open_llm: OpenLLM
) -> None:
    llm = open_llm(enable_lora=True, max_loras=2)
    one, two = (LoRARequest(path.name, n, str(path)) for n, path in enumerate(adapters[:2], start=1))
    for lora in (one, None, two):
        assert text_of(llm, lora)[1] == 0
        assert text_of(llm, lora)[1] == 32
    salted = {"prompt_token_ids": PROMPT, "cache_salt": "one"}
    [output] = llm.generate([salted], TEN, use_tqdm=False)
    assert output.num_cached_tokens == 0, "a salt that spells an adapter's name is no adapter"


def test_reloading_in_place_never_reads_what_the_old_weights_left(tmp_path: Path, open_llm: OpenLLM) -> None:
    folder = write_adapter(tmp_path / "a", seed=1)
    llm = open_llm(enable_lora=True)
    lora = llm.load_lora_adapter("a", str(folder))
    old, _ = text_of(llm, lora)
    write_adapter(folder, seed=2)
    assert text_of(llm, lora) == (old, 32), "the folder changed, the loaded weights did not"
    lora = llm.load_lora_adapter("a", str(folder), load_inplace=True)
    new, num_cached = text_of(llm, lora)
    assert num_cached == 0 and new != old
    fresh = open_llm(enable_lora=True)
    assert text_of(fresh, LoRARequest("b", 1, str(folder)))[0] == new
    assert len(llm.llm_engine.engine_core.executor.worker.lora.on_host) == 1


def test_a_request_on_its_way_while_its_adapter_is_replaced_gets_the_new_weights(
    adapters: list[Path], open_llm: OpenLLM
) -> None:
    llm = open_llm(enable_lora=True)
    engine = llm.llm_engine
    before = llm.load_lora_adapter("a", str(adapters[0]))
    old, _ = text_of(llm, before)
    submitted = engine.input_processor.process("on its way", PROMPT, TEN, lora_request=before)
    now = llm.load_lora_adapter("a", str(adapters[1]), load_inplace=True)
    engine.add(submitted)
    while engine.has_unfinished():
        outputs = engine.step()
    assert outputs[0].outputs[0].token_ids == text_of(llm, now)[0] != old
    assert text_of(llm, before)[0] == text_of(llm, now)[0], "its name means the new weights from now on"
    llm.unload_lora_adapter("a")
    with pytest.raises(InvalidRequestError, match="'a' is not loaded"):
        engine.input_processor.process("late", PROMPT, TEN, lora_request=before)


def test_an_adapter_whose_folder_is_gone_fails_its_requests_alone(tmp_path: Path, open_llm: OpenLLM) -> None:
    """It fell out of the host cache, so that its slot cannot be filled again."""
    folders = [write_adapter(tmp_path / f"a{n}", seed=n, targets=["q_proj"]) for n in (1, 2)]
    llm = open_llm(enable_lora=True)
    one, two = (llm.load_lora_adapter(folder.name, str(folder)) for folder in folders)
    os.remove(folders[0] / "adapter_model.safetensors")
    lost, well, base = llm.generate([PROMPT] * 3, TEN, lora_request=[one, two, None], use_tqdm=False)
    assert lost.outputs[0].finish_reason == "error" and "load it again" in lost.error
    assert lost.outputs[0].token_ids == []
    assert [o.outputs[0].finish_reason for o in (well, base)] == ["length", "length"]
    write_adapter(folders[0], seed=1, targets=["q_proj"])
    again = llm.load_lora_adapter("a1", str(folders[0]), load_inplace=True)
    assert len(text_of(llm, again)[0]) == 10


@pytest.mark.parametrize("rewritten", ["adapter_model.safetensors", "adapter_config.json"])
def test_an_adapter_rewritten_with_its_size_and_time_is_not_read_again_in_silence(
    rewritten: str, tmp_path: Path, open_llm: OpenLLM
) -> None:
    """As `cp --preserve` or unpacking an archive does. It fell out of the host cache meanwhile."""
    folders = [write_adapter(tmp_path / f"a{n}", seed=n, targets=["q_proj"]) for n in (1, 2)]
    write_adapter(tmp_path / "other", seed=3, targets=["q_proj"], lora_alpha=32)
    llm = open_llm(enable_lora=True, max_loras=1, max_cpu_loras=1)
    one, _ = (llm.load_lora_adapter(folder.name, str(folder)) for folder in folders)
    file, other = folders[0] / rewritten, tmp_path / "other" / rewritten
    before = file.stat()
    assert before.st_size == other.stat().st_size
    file.write_bytes(other.read_bytes())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    [lost] = llm.generate([PROMPT], TEN, lora_request=one, use_tqdm=False)
    assert lost.outputs[0].finish_reason == "error" and "load it again" in lost.error


def test_an_interrupted_step_leaves_no_adapter_half_loaded(adapters: list[Path], open_llm: OpenLLM) -> None:
    llm = open_llm(enable_lora=True)
    lora = llm.load_lora_adapter("one", str(adapters[0]))
    expected, _ = text_of(llm, lora)
    core = llm.llm_engine.engine_core
    other = llm.load_lora_adapter("two", str(adapters[1]))
    submit = core.executor.submit

    def interrupted(*args):
        core.executor.submit = submit
        raise KeyboardInterrupt

    core.executor.submit = interrupted
    with pytest.raises(KeyboardInterrupt):
        text_of(llm, other)
    assert text_of(llm, lora)[0] == expected
    assert text_of(llm, other)[0] != expected


def test_memory_is_as_at_the_start_after_many_random_requests(
    adapters: list[Path], open_llm: OpenLLM
) -> None:
    llm = open_llm(enable_lora=True, max_loras=2, num_gpu_blocks_override=12, max_num_seqs=4)
    loras = [llm.load_lora_adapter(path.name, str(path)) for path in adapters]
    rng = random.Random(5)
    for _ in range(6):
        count = rng.randint(3, 10)
        prompts = [[rng.randrange(2048) for _ in range(rng.randint(1, 60))] for _ in range(count)]
        chosen = [rng.choice([*loras, None]) for _ in prompts]
        params = SamplingParams(max_tokens=rng.randint(1, 20), temperature=1.0, seed=1)
        llm.generate(prompts, params, lora_request=chosen, use_tqdm=False)
    scheduler = llm.llm_engine.engine_core.scheduler
    assert scheduler.kv.pool.num_used == 0 and not LoRASlots.of(scheduler).num_users
    for lora in loras:
        llm.unload_lora_adapter(lora.lora_name)
    manager = llm.llm_engine.engine_core.executor.worker.lora
    assert not manager.on_host and not manager.slot_of and not LoRASlots.of(scheduler).slot_of
    scheduler.check_integrity()


async def test_async_clients_share_an_engine_with_different_adapters(adapters: list[Path]) -> None:
    args = EngineArgs(enable_lora=True, max_loras=2, num_gpu_blocks_override=100, dtype="float32")
    loras = [*(LoRARequest(path.name, n, str(path)) for n, path in enumerate(adapters, start=1)), None]

    async def ask(llm: AsyncLLM, lora: LoRARequest | None) -> list[int]:
        async for output in llm.generate(PROMPT, TEN, lora_request=lora):
            last = output
        assert last.lora_request == lora
        return last.outputs[0].token_ids

    with AsyncLLM(args) as llm:
        together = await asyncio.gather(*(ask(llm, lora) for lora in loras))
        assert [await ask(llm, lora) for lora in loras] == together
        assert [request.lora_name for request in await llm.list_lora_adapters()] == ["one", "two", "three"]
        await llm.unload_lora_adapter("two")
        assert await llm.add_lora(loras[0]) is False
        with pytest.raises(InvalidRequestError, match="there is no adapter"):
            await llm.unload_lora_adapter("two")
        with pytest.raises(InvalidRequestError, match="neither a shipped adapter"):
            await ask(llm, LoRARequest("x", 7, "/nowhere"))
