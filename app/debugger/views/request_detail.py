"""Details of one request: its tokens, its blocks at a step, and the costs of its preemptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.trace.blocks import NULL_BLOCK
from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace
from engine.trace.records import StepSeries


class OutputToken(NamedTuple):
    """A token of the output and its latency."""

    position: int
    """0 is the first token of the output."""
    token_id: int
    step: int
    gap_steps: int | None
    """Steps since the previous token; 0 if the same step produced both; None for the first token."""
    gap_ms: float | None
    """Milliseconds between the ends of the steps; None without a clock."""


def output_tokens(reader: Trace, request: RequestHistory, has_clock: bool) -> list[OutputToken]:
    series = reader.series
    tokens: list[OutputToken] = []
    for step, num_outputs in zip(request.row_steps, request.row_outputs, strict=True):
        for token_id in request.tokens[len(tokens) : num_outputs]:
            gap_steps = gap_ms = None
            if tokens:
                before = tokens[-1].step
                gap_steps = step - before
                if has_clock and step < len(series.time_s):
                    gap_ms = 1e3 * (_end(series, step) - _end(series, before))
            tokens.append(OutputToken(len(tokens), token_id, step, gap_steps, gap_ms))
    return tokens


def _end(series: StepSeries, step: int) -> float:
    return series.time_s[step] + series.duration_s[step]


@dataclass(frozen=True)
class Preemption:
    """One preemption of a request."""

    step: int
    blocks_given_back: int
    tokens_lost: int
    """Tokens whose KV existed when it was preempted."""
    resumed: int | None
    """Step of the resumption; None if it did not resume."""
    tokens_found: int | None
    """Tokens found at the resumption, in the prefix cache or copied from the host."""
    next_token: int | None
    """The step of its next token: until then its client gets nothing."""

    @property
    def tokens_computed_again(self) -> int | None:
        """Recomputed tokens; known after the resumption."""
        return None if self.tokens_found is None else max(0, self.tokens_lost - self.tokens_found)


def preemptions(request: RequestHistory) -> list[Preemption]:
    """The preemptions of a request, in order. A stay ends with a preemption or with the request."""
    costs = []
    for position, stay in enumerate(request.stays):
        if stay.left not in request.preempted:
            continue
        after = request.stays[position + 1] if position + 1 < len(request.stays) else None
        row = request.row_before(stay.left - 1)
        ran = row >= 0 and request.row_steps[row] >= stay.admitted
        costs.append(
            Preemption(
                step=stay.left,
                blocks_given_back=sum(block != NULL_BLOCK for block in stay.table_at(stay.left)),
                tokens_lost=request.row_computed[row] if ran else stay.start,
                resumed=after.admitted if after else None,
                tokens_found=after.start if after else None,
                next_token=_next_token(request, row),
            )
        )
    return costs


def _next_token(request: RequestHistory, row: int) -> int | None:
    """The step of the first token after a row."""
    had = request.row_outputs[row] if row >= 0 else 0
    rows = zip(request.row_steps[row + 1 :], request.row_outputs[row + 1 :], strict=True)
    return next((step for step, outputs in rows if outputs > had), None)


class TableEntry(NamedTuple):
    """One entry of a block table."""

    index: int  # type: ignore[assignment]
    block: int
    """0: the null block, behind the sliding window."""
    ref: int
    others: list[str]
    """Other running requests that hold it."""
    is_sealed: bool
    """Whether it is published, so that a prefix hit can reuse it."""
    came: int
    """The step in which it was added to the table."""


def block_table(reader: Trace, request: RequestHistory, step: int) -> list[TableEntry]:
    """A request's blocks after a step, in table order; none while it waits."""
    stay = request.stay_at(step)
    if stay is None or not request.lives_at(step):
        return []
    state = reader.state_at(step)
    table = stay.table_at(step)
    return [
        TableEntry(
            index,
            block,
            state.blocks.ref[block],
            [name for name in state.owners.get(block, ()) if block and name != request.request_id],
            state.blocks.hash[block] != 0,
            stay.block_steps[index],
        )
        for index, block in enumerate(table)
    ]
