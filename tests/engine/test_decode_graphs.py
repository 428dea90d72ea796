"""Replayed decode steps: the logits of an engine that runs every step in Python, bit for bit."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import LLM, AsyncLLM, EngineArgs, SamplingParams
from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput
from engine.engine_core import EngineCore
from engine.layers.embedding import VocabParallelEmbedding
from engine.layers.norm import RMSNorm
from kernels import ops
from kernels.cpu import build
from tests.engine.harness import VOCAB_SIZE, request, run

if problem := build.load_library().problem:
    pytest.skip(problem, allow_module_level=True)

from engine.worker import decode_graphs

MakeEngine = Callable[..., EngineCore]


@dataclass
class Watched:
    """Observations of a run."""

    logits: list[dict[str, Tensor]] = field(default_factory=list)
    """Logits of every step that sampled: request id -> fp32 [V]."""
    replays: int = 0
    outputs: dict[str, list[EngineCoreOutput]] = field(default_factory=dict)

    @property
    def num_preemptions(self) -> int:
        return sum(outputs[-1].num_preemptions for outputs in self.outputs.values())


def watched_run(engine: EngineCore, requests: list[Request]) -> Watched:
    seen, runner = Watched(), engine.executor.worker.runner
    sample = runner._sample

    def watch(batch: Any, logits: Tensor, bitmask: Any) -> Any:
        names = [batch.rows[index].request_id for index in batch.sampled_rows.tolist()]
        seen.logits.append({name: row.clone() for name, row in zip(names, logits, strict=True)})
        return sample(batch, logits, bitmask)

    runner._sample = watch
    graph = decode_graphs.CPUGraph
    replay = graph.replay

    def count(self: Any) -> None:
        seen.replays += 1
        replay(self)

    graph.replay = count
    try:
        seen.outputs = run(engine, requests)
    finally:
        graph.replay = replay
        runner._sample = sample
    return seen


def assert_same(found: Watched, expected: Watched) -> None:
    """Step by step the same rows with the same bits, and the same outputs of every kind."""
    assert [list(step) for step in found.logits] == [list(step) for step in expected.logits]
    for number, (step, other) in enumerate(zip(found.logits, expected.logits, strict=True)):
        for name in step:
            same = torch.equal(step[name].view(torch.int32), other[name].view(torch.int32))
            assert same, f"step {number}, {len(step)} rows, request {name}"
    for name, outputs in expected.outputs.items():
        told = [(o.new_token_ids, o.finish_reason, o.logprobs, o.prompt_logprobs) for o in outputs]
        assert [
            (o.new_token_ids, o.finish_reason, o.logprobs, o.prompt_logprobs) for o in found.outputs[name]
        ] == told, name


def mixture(seed: int, count: int = 14) -> list[Request]:
    """Requests that come with every kind of setting and leave one after the other; every third shares a prefix."""
    rng = random.Random(seed)
    prefix = [rng.randrange(2, VOCAB_SIZE) for _ in range(13)]
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.02},
        {"logprobs": 3},
        {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.2},
        {"temperature": 1.2, "logprobs": 1, "logit_bias": {5: 2.0}, "min_tokens": 3},
        {"stop_token_ids": list(range(2, 12)), "temperature": 1.0},
    ]
    requests = []
    for index in range(count):
        prompt = [rng.randrange(2, VOCAB_SIZE) for _ in range(rng.randint(1, 20))]
        params = {**kinds[index % len(kinds)], "max_tokens": rng.randint(1, 60)}
        requests.append(
            request(str(index), prefix + prompt if index % 3 == 0 else prompt, seed=index, **params)
        )
    return requests


WAYS: dict[str, dict[str, Any]] = {
    "all at once": {},
    "with preemptions": {"num_gpu_blocks_override": 60},
    "few rows, small chunks": {"max_num_seqs": 5, "max_num_batched_tokens": 8},
    "16 tokens in a block": {"block_size": 16},
    "without prefix cache": {"enable_prefix_caching": False},
}


@pytest.mark.parametrize("way", WAYS)
def test_replayed_steps_give_the_bits_of_eager_ones(make_engine: MakeEngine, way: str) -> None:
    replayed = watched_run(make_engine(**WAYS[way]), mixture(3))
    eager = watched_run(make_engine(enforce_eager=True, **WAYS[way]), mixture(3))
    assert_same(replayed, eager)
    assert replayed.replays > 20 and eager.replays == 0
    assert (replayed.num_preemptions > 0) == (way == "with preemptions")


def test_a_second_wave_on_the_same_graphs_and_a_warm_cache(make_engine: MakeEngine) -> None:
    """Graphs outlive their requests: block tables and slots of the first wave must mean nothing to the second."""
    ours, theirs = make_engine(), make_engine(enforce_eager=True)
    for wave in range(3):
        found = watched_run(ours, renamed(mixture(wave), wave))
        assert_same(found, watched_run(theirs, renamed(mixture(wave), wave)))
    again = watched_run(ours, renamed(mixture(2), 9))
    assert any(outputs[0].num_cached_tokens for outputs in again.outputs.values())
    assert_same(again, watched_run(theirs, renamed(mixture(2), 9)))


def renamed(requests: list[Request], wave: int) -> list[Request]:
    for item in requests:
        item.request_id = f"{wave}-{item.request_id}"
    return requests


def test_a_request_decodes_to_the_last_position_of_its_table(make_engine: MakeEngine) -> None:
    work = [request("long", [5, 6], max_tokens=254), request("short", [7] * 30, max_tokens=40)]
    again = [request("long", [5, 6], max_tokens=254), request("short", [7] * 30, max_tokens=40)]
    found = watched_run(make_engine(), work)
    assert sum(len(output.new_token_ids) for output in found.outputs["long"]) == 254
    assert_same(found, watched_run(make_engine(enforce_eager=True), again))


# --- when there is nothing to replay ---------------------------------------------------------------------------


def doubled_by_torch(self: RMSNorm, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    """A layer with an operation that is no kernel of ours."""
    return ops.fused_add_rms_norm(x * 2 + 1, residual, self.weight, self.eps)


def test_a_model_with_an_operation_of_torch_is_noticed_and_runs_as_it_should(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(RMSNorm, "add_and_norm", doubled_by_torch)
    engine = make_engine()
    runner = engine.executor.worker.runner
    assert runner.replays and not runner.replay_off_reason
    found = watched_run(engine, mixture(5))
    assert_same(found, watched_run(make_engine(enforce_eager=True), mixture(5)))
    assert found.replays == 1
    assert not runner.replays
    assert runner.replay_off_reason == "this model does more than our kernels record"
    [warning] = [record for record in caplog.records if "not replayed" in record.message]
    assert warning.levelname == "WARNING" and runner.replay_off_reason in warning.message
    later = watched_run(engine, renamed(mixture(6), 1))
    assert later.replays == 0


def test_a_model_that_uses_torch_for_some_batch_sizes_only_is_noticed(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel may refuse some shapes, and then the reference steps in: a graph with fewer calls is checked too."""
    look_up = VocabParallelEmbedding.forward

    def sometimes(self: VocabParallelEmbedding, ids: Tensor) -> Tensor:
        return self.weight[ids] if len(ids) in (2, 8) else look_up(self, ids)

    monkeypatch.setattr(VocabParallelEmbedding, "forward", sometimes)
    assert_same(
        watched_run(make_engine(), mixture(5)), watched_run(make_engine(enforce_eager=True), mixture(5))
    )


def test_more_rows_than_the_arena_holds_go_the_ordinary_way(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    watched_run(engine, [request(str(i), [i + 2], max_tokens=4) for i in range(4)])
    arena = engine.executor.worker.runner._graphs._recorder._arena
    monkeypatch.setattr(decode_graphs, "ARENA_BYTES", arena._used - arena._begin)  # four rows, to the byte
    engine = make_engine()
    found = watched_run(engine, mixture(8))
    assert_same(found, watched_run(make_engine(enforce_eager=True), mixture(8)))
    graphs = engine.executor.worker.runner._graphs
    assert 4 <= graphs._max_tokens < 14 and max(size for size, _ in graphs._recorded) <= graphs._max_tokens
    assert found.replays > 10


def test_batches_above_the_limit_are_not_recorded(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_graphs, "MAX_TOKENS", 3)
    engine = make_engine()
    found = watched_run(engine, mixture(8))
    assert_same(found, watched_run(make_engine(enforce_eager=True), mixture(8)))
    assert set(engine.executor.worker.runner._graphs._recorded) <= {(1, False), (2, False), (3, False)}


def test_while_a_request_wants_prompt_logprobs_steps_are_ordinary(make_engine: MakeEngine) -> None:
    def work() -> list[Request]:
        asks = request("asks", list(range(2, 22)), prompt_logprobs=2, max_tokens=6)
        return [asks, *(request(str(i), [i + 5] * (i + 1), max_tokens=4 + 4 * i) for i in range(5))]

    engine = make_engine()
    runner = engine.executor.worker.runner
    asked_while = []
    logits = runner._graphs.run
    runner._graphs.run = lambda batch: asked_while.append(bool(runner._num_prompt_logprobs)) or logits(batch)
    found = watched_run(engine, work())
    assert asked_while and not any(asked_while)
    assert_same(found, watched_run(make_engine(enforce_eager=True), work()))
    assert sum(len(output.prompt_logprobs or ()) for output in found.outputs["asks"]) == 19


@pytest.mark.parametrize("settings", [{"attention_backend": "sdpa"}, {"enforce_eager": True}], ids=str)
def test_other_backends_and_eager_engines_have_no_graphs(make_engine: MakeEngine, settings: dict) -> None:
    assert make_engine(**settings).executor.worker.runner._graphs is None
    assert make_engine().executor.worker.runner._graphs is not None


def test_a_bf16_model_is_replayed_bit_for_bit(make_engine: MakeEngine) -> None:
    found = watched_run(make_engine(dtype="bfloat16"), mixture(4, count=6))
    assert_same(found, watched_run(make_engine(dtype="bfloat16", enforce_eager=True), mixture(4, count=6)))
    assert found.replays > 10


def test_a_bf16_request_gets_the_same_bits_alone_and_in_a_batch(model_dir: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=1, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]

    def said(llm: LLM, some: list[dict[str, list[int]]]) -> list[Any]:
        outputs = llm.generate(some, params, use_tqdm=False)
        return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]

    settings = {**llm_settings(model_dir), "dtype": "bfloat16", "enable_prefix_caching": False}
    with LLM(**settings) as llm:
        together = said(llm, prompts)
        assert together == [said(llm, [prompt])[0] for prompt in prompts]
    with LLM(**settings, max_num_batched_tokens=8) as llm:  # prompts in chunks
        assert said(llm, prompts) == together


def test_an_fp16_model_is_noticed(make_engine: MakeEngine) -> None:
    """Its products are torch's, so the first replay differs and the engine goes on without."""
    found = watched_run(make_engine(dtype="float16"), mixture(4, count=6))
    eager = watched_run(make_engine(dtype="float16", enforce_eager=True), mixture(4, count=6))
    assert found.replays == 1
    for step, other in zip(found.logits[:3], eager.logits, strict=False):
        assert list(step) == list(other)
        for name in step:
            torch.testing.assert_close(step[name], other[name], rtol=0.02, atol=0.02)


# --- company -----------------------------------------------------------------------------------------------------


def test_two_engines_take_turns_in_one_process(make_engine: MakeEngine) -> None:
    expected = [
        watched_run(make_engine(seed=seed, enforce_eager=True), mixture(seed)).outputs for seed in (1, 2)
    ]
    engines = [make_engine(seed=seed) for seed in (1, 2)]
    outputs: list[dict[str, list[int]]] = [{}, {}]
    for engine, seed in zip(engines, (1, 2), strict=True):
        for item in mixture(seed):
            engine.add_request(item)
    while any(engine.has_unfinished() for engine in engines):
        for engine, said in zip(engines, outputs, strict=True):
            for output in engine.step() if engine.has_unfinished() else ():
                said.setdefault(output.request_id, []).extend(output.new_token_ids)
    for said, wanted in zip(outputs, expected, strict=True):
        assert said == {name: [t for o in outs for t in o.new_token_ids] for name, outs in wanted.items()}


PROMPTS = [[3, 4, 5], [9] * 11, [7, 2, 7, 2, 9], list(range(2, 40))]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=30, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.7, seed=4, top_k=8, max_tokens=25, logprobs=2),
    SamplingParams(temperature=0, repetition_penalty=1.3, max_tokens=40, ignore_eos=True),
]


def llm_settings(model_dir: Path) -> dict[str, Any]:
    settings = {"model": str(model_dir), "load_format": "dummy", "skip_tokenizer_init": True, "block_size": 4}
    return {**settings, "device": "cpu", "max_num_seqs": 8, "num_gpu_blocks_override": 200}


def said_eagerly(model_dir: Path) -> list[list[list[int]]]:
    with LLM(**llm_settings(model_dir), enforce_eager=True) as llm:
        return said_by(llm)


def said_by(llm: LLM) -> list[list[list[int]]]:
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
    return [[list(choice.token_ids) for choice in output.outputs] for output in outputs]


def test_several_samples_of_one_prompt(model_dir: Path) -> None:
    with LLM(**llm_settings(model_dir)) as llm:
        found = [said_by(llm) for _ in range(2)]
    assert found[0] == found[1] == said_eagerly(model_dir)
    assert len({tuple(choice) for choice in found[0][1]}) == 3


def test_an_engine_in_another_thread_beside_one_in_this(model_dir: Path) -> None:
    """Recording, the arena and the forward context belong to a thread."""
    expected = said_eagerly(model_dir)
    beside: list[list[list[list[int]]]] = []

    def here() -> None:
        with LLM(**llm_settings(model_dir)) as llm:
            beside.extend(said_by(llm) for _ in range(3))

    async def there() -> list[list[list[int]]]:
        with AsyncLLM.from_engine_args(EngineArgs(**llm_settings(model_dir))) as async_llm:
            streams = [ask(async_llm, index) for index in range(len(PROMPTS))]
            return await asyncio.gather(*streams)

    async def ask(async_llm: AsyncLLM, index: int) -> list[list[int]]:
        last = None
        prompt = {"prompt_token_ids": PROMPTS[index]}
        async for output in async_llm.generate(prompt, PARAMS[index], request_id=str(index)):
            last = output
        return [list(choice.token_ids) for choice in last.outputs]

    thread = threading.Thread(target=here)
    thread.start()
    found = asyncio.run(there())
    thread.join()
    assert found == expected
    assert beside == [expected] * 3
