"""Decode replay for any recorder: sizes, padding, and what is left to ordinary steps. No GPU is needed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.attention.backend import AttentionMetadata
from engine.engine_core import EngineCore
from engine.worker.cuda_graphs import CUDARecorder
from engine.worker.decode_graphs import CannotRecord, DecodeGraphs, Outputs, Recording, _Inputs, graph_size
from tests.engine.harness import VOCAB_SIZE, request, run


class RunAgain:
    """Record a step as a function, under the rules of CUDA graphs: one result tensor for all sizes."""

    decode_rows_only = True

    def __init__(self, max_tokens: int = 512) -> None:
        self.sizes: list[int] = []
        self.num_replays = 0
        self._max_tokens = max_tokens
        self._results: Outputs = ()

    def record(self, run: Callable[[], Outputs], size: int) -> Recording:
        self.sizes.append(size)
        if not self._results:
            self._results = tuple(each.new_empty(self._max_tokens, *each.shape[1:]) for each in run())
        results = tuple(each[:size] for each in self._results)

        def replay() -> None:
            self.num_replays += 1
            for result, output in zip(results, run(), strict=True):
                result.copy_(output)

        replay()
        return Recording(replay, size, results)


def step(num_rows: int, tokens_per_row: int = 1) -> _Inputs:
    tokens = num_rows * tokens_per_row
    ids = torch.arange(1, tokens + 1)
    starts = torch.arange(0, tokens + 1, tokens_per_row, dtype=torch.int32)
    metadata = AttentionMetadata(
        query_start_loc=starts,
        seq_lens=torch.full((num_rows,), 7, dtype=torch.int32),
        block_table=torch.ones(num_rows, 2, dtype=torch.int32),
        slot_mapping=ids + 100,
        num_decode_rows=num_rows if tokens_per_row == 1 else 0,
        max_query_len=tokens_per_row,
        max_seq_len=7,
        query_start_loc_cpu=starts.tolist(),
        seq_lens_cpu=[7] * num_rows,
    )
    return _Inputs(ids, ids + 10, metadata, None)


def forward(seen: list[_Inputs]) -> Callable[[_Inputs], tuple[Tensor]]:
    def compute(inputs: _Inputs) -> tuple[Tensor]:
        seen.append(inputs)
        return ((inputs.input_ids * 1000 + inputs.positions)[:, None].float(),)

    return compute


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 8, 9, 23, 64])
def test_a_step_is_padded_to_its_size_with_rows_that_write_nothing(num_rows: int) -> None:
    seen: list[_Inputs] = []
    recorder = RunAgain()
    graphs = DecodeGraphs(forward(seen), 4, recorder)
    for _ in range(3):
        (result,) = graphs.run(step(num_rows)) or ()
        (wanted,) = forward([])(step(num_rows))
        assert torch.equal(result, wanted)
    size = graph_size(num_rows)
    assert recorder.sizes == [size]
    metadata = seen[-1].metadata
    assert metadata.slot_mapping.tolist() == [101 + row for row in range(num_rows)] + [-1] * (size - num_rows)
    assert metadata.seq_lens.tolist() == [7] * num_rows + [0] * (size - num_rows)
    assert metadata.query_start_loc.tolist() == [*range(num_rows + 1), *[num_rows] * (size - num_rows)]


def test_sizes_share_results_that_are_valid_until_the_next_step() -> None:
    graphs = DecodeGraphs(forward([]), 4, RunAgain())
    (large,) = graphs.run(step(16)) or ()
    (small,) = graphs.run(step(2)) or ()
    assert small.data_ptr() == large.data_ptr() and torch.equal(small, forward([])(step(2))[0])


@pytest.mark.parametrize("batch", [step(513), step(2, tokens_per_row=3)])
def test_more_rows_than_the_limit_and_rows_with_drafts_are_left_to_ordinary_steps(batch: _Inputs) -> None:
    recorder = RunAgain()
    assert DecodeGraphs(forward([]), 4, recorder).run(batch) is None
    assert recorder.sizes == []


def test_a_model_that_cannot_be_recorded_is_tried_once() -> None:
    class Refuses(RunAgain):
        def record(self, run: Callable[[], Outputs], size: int) -> Recording:
            self.sizes.append(size)
            raise CannotRecord("operation not permitted when stream is capturing")

    recorder = Refuses()
    graphs = DecodeGraphs(forward([]), 4, recorder)
    assert graphs.run(step(1)) is None and graphs.run(step(1)) is None
    assert recorder.sizes == [1]


def test_an_engine_with_decode_only_graphs_says_what_it_says_without(
    make_engine: Callable[..., EngineCore], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(1)
    prompts = [[rng.randrange(2, VOCAB_SIZE) for _ in range(rng.randint(1, 20))] for _ in range(9)]
    recorders: list[RunAgain] = []

    def recorder() -> RunAgain:
        recorders.append(RunAgain())
        return recorders[-1]

    def said(**settings: object) -> dict[str, list[int]]:
        requests = [
            request(str(index), prompt, seed=index, temperature=1.0, max_tokens=5 + 4 * index)
            for index, prompt in enumerate(prompts)
        ]
        outputs = run(make_engine(**settings), requests)
        return {
            name: [token for each in many for token in each.new_token_ids] for name, many in outputs.items()
        }

    monkeypatch.setattr("engine.worker.model_runner.CPURecorder", recorder)
    assert said() == said(enforce_eager=True)
    assert recorders[0].num_replays > 20 and set(recorders[0].sizes) <= {1, 2, 4, 5, 6, 7, 8, 16}


def test_a_cuda_recorder_needs_no_gpu_until_it_records() -> None:
    assert CUDARecorder(64).decode_rows_only
