"""Decode replay: record a model's kernel calls once per number of tokens, then replay them without Python.

A decode step of a small model is mostly overhead: about forty calls of a few microseconds each, which differ from step
to step only in their inputs. A replay copies these to fixed addresses, runs the recorded calls, and reads the logits at
their fixed address.

    tokens of the step       1   2   3   4   5   ...  8   9 .. 16   17 .. 24
    size of the graph        1   2   4   4   5   ...  8  16    16   24    24   ...

    padding rows have no tokens (query_start_loc stays), padding tokens no slot (-1): nothing is written for them

Kernels read the row boundaries when they run, so a graph of 8 tokens serves 8 decoding requests, or two that check
three drafts each, or one that checks seven. It has as many rows as tokens; unused rows are padding.

The first step of each size is computed and recorded. Operations that are not our kernels are not recorded, so the
first replay is compared with an ordinary run, bit for bit; if the logits differ, decode replay is switched off. Graphs
with another number of calls are compared too: a kernel may not support every size.

On a CPU the recorder is `CPURecorder`, on a GPU `CUDARecorder` (`cuda_graphs.py`); sizes, padding and comparison are
the same.

Source: vLLM's full CUDA graphs for uniform decode (v1/worker/gpu/cudagraph_utils.py) and its list of sizes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from engine.attention.backend import AttentionMetadata
from engine.config.graph_sizes import graph_size
from engine.worker.model_input import ModelInput
from kernels.ops import Arena, ArenaFull, CPUGraph

logger = logging.getLogger(__name__)

MAX_TOKENS = 512
ARENA_BYTES = 32 << 20
"""Bytes for results of all layers of the largest batch; only used pages take memory."""


@dataclass(slots=True)
class _Inputs:
    """The part of a ModelInput that a forward pass reads, at fixed addresses."""

    input_ids: Tensor
    positions: Tensor
    metadata: AttentionMetadata
    token_adapter: Tensor | None
    copied_adapter: Tensor | None = None
    """Tensor of the batch that `token_adapter` was copied from; it changes only with the batch's requests."""


Outputs = tuple[Tensor, ...]
Forward = Callable[[Any], Outputs]
"""An ordinary forward pass over a ModelInput or `_Inputs`; returns tensors of T rows."""


class CannotRecord(RuntimeError):
    """A step contains an operation that this device cannot record; the message names it."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded forward pass, which has been computed once."""

    replay: Callable[[], object]
    """Compute it again on the present content of its inputs."""
    kind: Hashable
    """Recordings of one kind make the same calls: if one replays correctly, all do."""
    outputs: Outputs
    """Tensors that a replay fills; valid until the next one of any size."""


class Recorder(Protocol):
    """Records forward passes on one kind of device."""

    decode_rows_only: bool
    """Whether only steps with one query in every row can be replayed."""

    def record(self, run: Callable[[], Outputs], size: int) -> Recording:
        """Run a step of `size` tokens and record it.

        Raises ArenaFull if results of this size do not fit, CannotRecord if no size can be recorded.
        """


class CPURecorder:
    """Records calls of the C++ kernels; results lie in an arena that all sizes share."""

    decode_rows_only = False

    def __init__(self) -> None:
        self._arena = Arena(ARENA_BYTES)

    def record(self, run: Callable[[], Outputs], size: int) -> Recording:
        """Run and record. Raises ArenaFull."""
        graph, outputs = CPUGraph.record(run, self._arena)
        # Looked up at each replay: a profile puts clocks around the method for a while.
        return Recording(lambda: graph.replay(), graph.num_calls, outputs)


@dataclass(slots=True)
class _Recorded:
    """Recording of one size, with the inputs that it reads."""

    inputs: _Inputs
    recording: Recording


class DecodeGraphs:
    """Graphs for one model on one cache, by number of tokens."""

    def __init__(self, forward: Forward, max_blocks_per_row: int, recorder: Recorder) -> None:
        self._forward = forward
        self._max_blocks_per_row = max_blocks_per_row
        self._recorder = recorder
        self._recorded: dict[tuple[int, bool], _Recorded] = {}
        """Graphs by size and by whether the batch has adapters, whose kernels are left out otherwise."""
        self._max_tokens = MAX_TOKENS
        self._verified: set[tuple[Hashable, bool]] = set()
        """Kinds of recordings that were compared, and whether with adapters."""
        self.off_reason = ""
        """Reason why nothing is replayed any more; empty while steps are."""

    def run(self, batch: ModelInput) -> Outputs | None:
        """Return the results of `forward`, valid until the next call; None if this batch cannot be replayed."""
        num_tokens = batch.input_ids.shape[0]
        size = graph_size(num_tokens)
        if size > self._max_tokens:
            return None
        if self._recorder.decode_rows_only and batch.metadata.num_decode_rows != num_tokens:
            return None
        has_adapters = batch.token_adapter is not None
        recorded = self._recorded.get((size, has_adapters))
        if recorded is None:
            outputs = self._record(batch, size)
        else:
            _copy_inputs(batch, recorded.inputs)
            recorded.recording.replay()
            is_verified = (recorded.recording.kind, has_adapters) in self._verified
            outputs = recorded.recording.outputs if is_verified else self._verify(recorded)
        return None if outputs is None else tuple(output[:num_tokens] for output in outputs)

    def _record(self, batch: ModelInput, size: int) -> Outputs | None:
        inputs = _static_inputs(batch, size, self._max_blocks_per_row)
        _copy_inputs(batch, inputs)
        try:
            recording = self._recorder.record(lambda: self._forward(inputs), size)
        except ArenaFull:
            self._max_tokens = size - 1
            if not self._max_tokens:
                self._switch_off(f"the results of one token take more than {ARENA_BYTES >> 20} MiB")
            return None
        except CannotRecord as error:
            self._switch_off(str(error))
            return None
        self._recorded[size, batch.token_adapter is not None] = _Recorded(inputs, recording)
        return recording.outputs

    def _verify(self, recorded: _Recorded) -> Outputs:
        """Compare a replay with an ordinary run, which writes the same keys and values again."""
        recording = recorded.recording
        expected = self._forward(recorded.inputs)
        pairs = zip(expected, recording.outputs, strict=True)
        if all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs):
            self._verified.add((recording.kind, recorded.inputs.token_adapter is not None))
            return recording.outputs
        self._switch_off("this model does more than our kernels record")
        return expected

    def _switch_off(self, reason: str) -> None:
        logger.warning("decode steps are not replayed any more, each takes longer: %s", reason)
        self.off_reason = reason
        self._max_tokens = 0
        self._recorded.clear()


def _static_inputs(batch: ModelInput, size: int, max_blocks: int) -> _Inputs:
    """Return inputs of `size` padding rows, with room for all blocks of a row."""
    device = batch.input_ids.device
    return _Inputs(
        input_ids=torch.zeros(size, dtype=torch.int64, device=device),
        positions=torch.zeros(size, dtype=torch.int64, device=device),
        metadata=AttentionMetadata(
            query_start_loc=torch.zeros(size + 1, dtype=torch.int32, device=device),
            seq_lens=torch.zeros(size, dtype=torch.int32, device=device),
            block_table=torch.zeros(size, max_blocks, dtype=torch.int32, device=device),
            slot_mapping=torch.full((size,), -1, dtype=torch.int64, device=device),
            num_decode_rows=size,
            max_query_len=1,
            max_seq_len=batch.metadata.max_seq_len,
            query_start_loc_cpu=batch.metadata.query_start_loc_cpu,
            seq_lens_cpu=batch.metadata.seq_lens_cpu,
        ),
        token_adapter=None
        if batch.token_adapter is None
        else torch.full((size,), -1, dtype=torch.int32, device=device),
    )


def _copy_inputs(batch: ModelInput, static: _Inputs) -> None:
    source, target = batch.metadata, static.metadata
    num_tokens, num_rows = batch.input_ids.shape[0], source.seq_lens.shape[0]
    static.input_ids[:num_tokens] = batch.input_ids
    static.positions[:num_tokens] = batch.positions
    adapters = batch.token_adapter
    if static.token_adapter is not None and adapters is not None and adapters is not static.copied_adapter:
        static.token_adapter[:num_tokens] = adapters
        static.token_adapter[num_tokens:] = -1
        static.copied_adapter = adapters
    target.query_start_loc[:num_rows] = source.query_start_loc[:num_rows]
    target.query_start_loc[num_rows:] = num_tokens
    target.slot_mapping[:num_tokens] = source.slot_mapping
    target.slot_mapping[num_tokens:] = -1
    target.seq_lens[:num_rows] = source.seq_lens
    target.seq_lens[num_rows:] = 0
    target.block_table[:num_rows, : source.block_table.shape[1]] = source.block_table
