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
        left = columns.stay_left[stays]
        ran = zip(columns.stay_admitted[stays].tolist(), _where(left != NEVER, left), strict=True)
        ended = int(columns.ended[number])
        return int(columns.added[number]), None if ended == NEVER else ended, list(ran)

    def token_steps(self, number: int) -> NDArray[np.int32]:
        columns = self._columns
        rows = slice(columns.row_start[number], columns.row_start[number + 1])
        return np.repeat(columns.row_step[rows], np.diff(columns.row_outputs[rows], prepend=np.int32(0)))

    def _make_requests(self) -> Sequence[RequestSummary]:
        columns = self._columns
        adds, reasons = columns.facts["adds"], columns.facts["finish_reasons"]
        first, num_requests = columns.first_token, len(columns.added)
        known = np.maximum(first, 0)
        spoke_s = columns.time_s[known] + columns.duration_s[known] if columns.num_steps else columns.added_s
        hits = np.zeros(num_requests, np.int32)
        ran = np.flatnonzero(np.diff(columns.stay_start))
        hits[ran] = columns.stay_first[columns.stay_start[:-1][ran]]
        return list(
            map(
                RequestSummary,
                range(num_requests),
                [add["r"] for add in adds],
                columns.num_prompt_tokens.tolist(),
                hits.tolist(),
                columns.num_outputs.tolist(),
                columns.num_preemptions.tolist(),
                columns.added.tolist(),
                _where(columns.admitted != NEVER, columns.admitted),
                _where(first != NEVER, first),
                _where(columns.ended != NEVER, columns.ended),
                np.where(columns.aborted, "abort", np.array(reasons, object)).tolist(),
                [add.get("priority", 0) for add in adds],
                [add.get("lora") for add in adds],
                columns.added_s.tolist(),
                _where(first != NEVER, spoke_s - columns.added_s),
                _where(columns.ended != NEVER, columns.ended_s - columns.added_s),
            )
        )


def _where(known: NDArray[np.bool_], values: NDArray[Any]) -> list[Any]:
    """The values as a list, None where they are not known."""
    listed: list[Any] = np.where(known, values.astype(object), np.array(None)).tolist()
    return listed
