"""Log-probabilities are those of a plain forward pass, however the prompt was cut and cached."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.attention.backend import AttentionMetadata
from engine.attention.forward_context import ForwardContext, set_forward_context
from engine.core.sched_output import EngineCoreOutput, TokenLogprobs
from engine.engine_core import EngineCore
from engine.worker import model_runner
from tests.engine.harness import VOCAB_SIZE, request, run

MakeEngine = Callable[..., EngineCore]
PROMPT = [random.Random(1).randrange(2, VOCAB_SIZE) for _ in range(23)]


@torch.inference_mode()
def plain_logprobs(engine: EngineCore, token_ids: list[int]) -> Tensor:
    """float32 [len, vocab]: one pass over the whole sequence, in a cache of its own."""
    runner = engine.executor.worker.runner
    length, block_size = len(token_ids), runner.state.block_size
    num_blocks = -(-length // block_size)
    shape = (num_blocks, *runner.kv_cache.kv.shape[1:])
    metadata = AttentionMetadata(
        query_start_loc=torch.tensor([0, length], dtype=torch.int32),
        seq_lens=torch.tensor([length], dtype=torch.int32),
        block_table=torch.arange(num_blocks, dtype=torch.int32).unsqueeze(0),
        slot_mapping=torch.arange(length),
        num_decode_rows=0,
        max_query_len=length,
        max_seq_len=length,
        query_start_loc_cpu=[0, length],
        seq_lens_cpu=[length],
    )
    runner.backend.build(metadata)
    with set_forward_context(ForwardContext(metadata, runner.backend, torch.zeros(shape))):
        hidden = runner.model(torch.tensor(token_ids), torch.arange(length))
    return runner.model.compute_logits(hidden).log_softmax(-1)


def check(entries: list[TokenLogprobs], expected: Tensor, said: list[int], count: int) -> None:
    assert len(entries) == len(said)
    for entry, token, row in zip(entries, said, expected, strict=True):
        order = row.argsort(descending=True).tolist()
        assert entry.token_ids == [token, *order[:count]]
        assert entry.rank == order.index(token) + 1
        assert entry.logprobs == pytest.approx(row[entry.token_ids].tolist(), abs=2e-5)


def prompt_entries(outputs: list[EngineCoreOutput]) -> list[TokenLogprobs]:
    return [entry for output in outputs for entry in output.prompt_logprobs or ()]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_logprobs_are_those_of_a_plain_forward_pass(make_engine: MakeEngine, count: int) -> None:
    engine = make_engine()
    outputs = run(engine, [request("a", PROMPT, temperature=1.0, top_k=4, logprobs=count)])["a"]
    said = [token for output in outputs for token in output.new_token_ids]
    expected = plain_logprobs(engine, PROMPT + said)[len(PROMPT) - 1 : -1]
    check([entry for output in outputs for entry in output.logprobs], expected, said, count)


def test_requests_that_ask_for_no_logprobs_get_none(make_engine: MakeEngine) -> None:
    outputs = run(make_engine(), [request("asks", PROMPT, logprobs=1), request("does not", PROMPT[:9])])
    assert all(output.logprobs for output in outputs["asks"])
    assert not any(output.logprobs or output.prompt_logprobs for output in outputs["does not"])


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_num_batched_tokens": 5, "max_num_seqs": 5}, {"long_prefill_token_threshold": 1}],
    ids=["whole", "chunks of 5", "token by token"],
)
def test_prompt_logprobs_cross_chunk_boundaries(make_engine: MakeEngine, settings: dict) -> None:
    engine = make_engine(**settings)
    outputs = run(engine, [request("a", PROMPT, prompt_logprobs=3, logprobs=1, max_tokens=4)])["a"]
    said = [token for output in outputs for token in output.new_token_ids]
    expected = plain_logprobs(engine, PROMPT + said)
    check(prompt_entries(outputs), expected[: len(PROMPT) - 1], PROMPT[1:], 3)
    check([e for o in outputs for e in o.logprobs or ()], expected[len(PROMPT) - 1 : -1], said, 1)


def test_prompt_logprobs_are_complete_though_the_prompt_is_cached(make_engine: MakeEngine) -> None:
    engine = make_engine()
    run(engine, [request("warms", PROMPT)])
    outputs = run(engine, [request("asks", PROMPT, prompt_logprobs=0)])["asks"]
    check(prompt_entries(outputs), plain_logprobs(engine, PROMPT)[:-1], PROMPT[1:], 0)
    assert run(engine, [request("after", PROMPT)])["after"][0].num_cached_tokens == 20


def test_prompt_logprobs_come_once_though_the_request_was_preempted(make_engine: MakeEngine) -> None:
    engine = make_engine(num_gpu_blocks_override=18, max_num_batched_tokens=64)
    work = [request(str(i), PROMPT[i:], prompt_logprobs=1, max_tokens=20) for i in range(3)]
    outputs = run(engine, work)
    assert sum(outs[-1].num_preemptions for outs in outputs.values()) > 0
    for i in range(3):
        check(prompt_entries(outputs[str(i)]), plain_logprobs(engine, PROMPT[i:])[:-1], PROMPT[i + 1 :], 1)


def test_logits_of_a_long_prompt_exist_only_in_slices(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "PROMPT_LOGPROBS_CHUNK", 4)
    engine = make_engine()
    sizes = []
    compute = engine.executor.worker.runner.model.compute_logits

    def watched(hidden: Tensor) -> Tensor:
        sizes.append(len(hidden))
        return compute(hidden)

    engine.executor.worker.runner.model.compute_logits = watched
    outputs = run(engine, [request("a", PROMPT, prompt_logprobs=2, max_tokens=1)])["a"]
    check(prompt_entries(outputs), plain_logprobs(engine, PROMPT)[:-1], PROMPT[1:], 2)
    assert max(sizes[:-1]) == 4
