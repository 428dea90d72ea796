"""`ColumnIndex`: the index of a long run, from its columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.debugger.column_reader import ColumnReader, lifecycle
from app.debugger.trace_columns import NEVER
from app.debugger.trace_index import BlockEvents, RequestSummary, TraceIndex


class ColumnIndex(TraceIndex):
    """A `TraceIndex` that creates no histories and no single events."""

    def __init__(self, reader: ColumnReader) -> None:
        super().__init__(reader)
        self._columns = reader.columns

    def _make_events(self) -> BlockEvents:
        columns = self._columns
        end = int(columns.event_start[self.num_steps])
        return BlockEvents(
            columns.event_start[: self.num_steps + 1],
            columns.event_step[:end],
            columns.event_kind[:end],
            columns.event_block[:end],
            columns.event_state[:end],
        )

    def _lifecycle_steps(self, kind: str) -> NDArray[np.int32]:
        if kind not in ("add", "abort", "preempt", "finish", "hit", "admit", "resume"):
            return super()._lifecycle_steps(kind)  # raises for an unknown kind
        steps: NDArray[np.int32] = lifecycle(self._columns, kind)[0]
        return steps

    def _life(self, number: int) -> tuple[int, int | None, list[tuple[int, int | None]]]:
        columns = self._columns
        stays = slice(columns.stay_start[number], columns.stay_start[number + 1])
        left = [_step(step) for step in columns.stay_left[stays]]
        ran = list(zip(columns.stay_admitted[stays].tolist(), left, strict=True))
        return int(columns.added[number]), _step(columns.ended[number]), ran

    def token_steps(self, number: int) -> NDArray[np.int32]:
        columns = self._columns
        rows = slice(columns.row_start[number], columns.row_start[number + 1])
        return np.repeat(columns.row_step[rows], np.diff(columns.row_outputs[rows], prepend=np.int32(0)))

    def _make_requests(self) -> Sequence[RequestSummary]:
        columns = self._columns
        first = columns.first_token
        known = np.maximum(first, 0)
        spoke_s = columns.time_s[known] + columns.duration_s[known] if columns.num_steps else columns.added_s
        hits = np.zeros(len(first), np.int32)
        ran = np.flatnonzero(np.diff(columns.stay_start))
        hits[ran] = columns.stay_first[columns.stay_start[:-1][ran]]
        numbers = (
            columns.num_prompt_tokens,
            hits,
            columns.num_outputs,
            columns.num_preemptions,
            columns.added,
            columns.admitted,
            first,
            columns.ended,
            columns.added_s,
            spoke_s - columns.added_s,
            columns.ended_s - columns.added_s,
            columns.aborted,
        )
        rows: Any = zip(*(column.tolist() for column in numbers), strict=True)
        return [
            RequestSummary(
                number,
                add["r"],
                prompt,
                cached,
                output,
                preemptions,
                added,
                _step(admitted),
                _step(first_token),
                _step(ended),
                "abort" if aborted else reason,
                add.get("priority", 0),
                add.get("lora"),
                added_s,
                None if first_token == NEVER else ttft,
                None if ended == NEVER else latency,
            )
            for number, (add, reason, row) in enumerate(
                zip(columns.facts["adds"], columns.facts["finish_reasons"], rows, strict=True)
            )
            for (
                prompt,
                cached,
                output,
                preemptions,
                added,
                admitted,
                first_token,
                ended,
                added_s,
                ttft,
                latency,
                aborted,
            ) in (row,)
        ]


def _step(step: Any) -> int | None:
    return None if step == NEVER else int(step)
