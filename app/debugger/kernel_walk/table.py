"""A request's pages after a step, from the trace alone.

The query stands at position seq_len - 1: the last token whose keys and values the step wrote. `page_walk.py` computes
what attention reads of each page; this is the same arithmetic without torch, and a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.sim.precision import KV_SCALE_BYTES
from engine.trace.format import TraceError
from engine.trace.protocol import Trace
from prep_common.text import counted

TABLE_ENTRY_BYTES = 4
"""Block ids are int32."""
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8_per_token_head": 1}
"""Bytes per number in the cache, by `kv_cache_dtype`."""


@dataclass(frozen=True)
class TablePage:
    """One column of the block table."""

    page: int
    block_id: int
    first: int
    """Position of its first token."""
    num_tokens: int
    """Tokens whose keys and values exist; 0: the block is reserved for future tokens."""
    shared_with: tuple[str, ...]
    """Other running requests whose tables hold the block."""
    is_null: bool
    """Its tokens left the sliding window, and the block was freed."""


@dataclass(frozen=True)
class Table:
    """A request's block table after a step."""

    request_id: str
    step: int
    seq_len: int
    """Tokens whose keys and values exist."""
    block_size: int
    pages: list[TablePage]
    row_start: int | None
    """First position that the step computed; None if the step computed nothing for this request."""

    @property
    def wasted_slots(self) -> int:
        """Slots of the request's own blocks that hold no token."""
        held = [page for page in self.pages if not page.is_null]
        return len(held) * self.block_size - sum(page.num_tokens for page in held)


def read_table(reader: Trace, step: int, request_id: str) -> Table:
    """Read the table. Raises TraceError if the request has none after this step."""
    state = reader.state_at(step)
    blocks = state.block_tables.get(request_id)
    if blocks is None:
        raise TraceError(_why_no_table(reader, step, request_id))
    seq_len, size = state.num_computed[request_id], reader.block_size
    row = next((row for row in reader.step(step).rows if row.request_id == request_id), None)
    pages = [
        TablePage(
            page,
            block,
            page * size,
            max(0, min(size, seq_len - page * size)),
            tuple(name for name in state.owners[block] if name != request_id) if block else (),
            block == 0,
        )
        for page, block in enumerate(blocks)
    ]
    return Table(request_id, step, seq_len, size, pages, row.start if row else None)


def _why_no_table(reader: Trace, step: int, request_id: str) -> str:
    history = reader.find(request_id, step)
    if history.added > step:
        return f"{request_id} arrives only before step {history.added}: after step {step} it has no blocks"
    if history.ended is not None and history.ended <= step:
        return f"{request_id} ended in step {history.ended} and gave its blocks back"
    if history.last_stay(step) is None:
        return f"{request_id} still waits after step {step}: it has no blocks yet"
    return f"{request_id} was preempted: after step {step} it waits and has no blocks"


def last_step_with_table(reader: Trace, step: int, request_id: str) -> int | None:
    """The step nearest to `step` after which the request has blocks; None if there is none."""
    spans = [
        (stay.admitted, (reader.num_steps if stay.left is None else stay.left) - 1)
        for stay in reader.find(request_id, step).stays
    ]
    spans = [(first, last) for first, last in spans if first <= last]
    if not spans:
        return None
    return min(
        (min(max(step, first), last) for first, last in spans), key=lambda candidate: abs(candidate - step)
    )


@dataclass(frozen=True)
class KVShape:
    """The sizes of a model that determine the bytes of its cache."""

    num_layers: int
    num_kv_heads: int
    head_dim: int

    def bytes_per_token(self, kv_dtype: str) -> int:
        """Key and value of one token in one layer, scales included."""
        per_head = self.head_dim * WIDTHS[kv_dtype] + KV_SCALE_BYTES.get(kv_dtype, 0)
        return 2 * self.num_kv_heads * per_head


@dataclass(frozen=True)
class Way:
    """One way to keep and read the cache, in bytes of one layer."""

    name: str
    read: int
    """Bytes that the attention of one query reads."""
    written: int
    """Bytes it writes besides the output."""
    held: int
    """Memory of this request."""
    why: str


def ways(table: Table, shape: KVShape, kv_dtype: str, num_seen: int, max_model_len: int) -> list[Way]:
    """Compare paged attention with its alternatives. num_seen: tokens that the query attends to."""
    per_token = shape.bytes_per_token(kv_dtype)
    seen, pages = num_seen * per_token, [page for page in table.pages if not page.is_null]
    in_blocks = len(pages) * table.block_size * per_token
    entries = TABLE_ENTRY_BYTES * -(-table.seq_len // table.block_size)
    reserved = max_model_len * per_token
    return [
        Way(
            "paged, as here", seen + entries, 0, in_blocks,
            f"{counted(num_seen, 'token')} x {per_token:,} B, and {entries:,} B of block ids",
        ),
        Way(
            "contiguous, max_model_len reserved", seen, 0, reserved,
            f"reads the same without a table, but reserves {max_model_len:,} tokens from the start",
        ),
        Way(
            "contiguous, read to its end and masked", reserved, 0, reserved,
            "a batch of fixed shape: every query reads as much as the longest one",
        ),
        Way(
            "paged, gathered, then attended", 2 * seen + entries, seen, in_blocks + seen,
            "first copies its pages into contiguous memory: read, written, and read again",
        ),
    ]  # fmt: skip


def resolve_dtype(kv_cache_dtype: str, model_dtype: str) -> str:
    """The storage type of a `kv_cache_dtype`."""
    name = model_dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    return "fp8" if name == "fp8_e4m3" else name
