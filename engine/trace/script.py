"""What a recorded run was asked, and what its model said: all that the scheduler needs to run again.

    script = read_script(TraceReader("run.itrace"))
    script.requests[3].tokens          # what request 3 said, in order
    script.requests[3].drafts_at(17)   # after 17 tokens of output: (drafts proposed, drafts confirmed)

A model's tokens depend on a request's own text alone, so whoever schedules differently gets the same
ones, in other steps. That is what makes a run repeatable without its model.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from engine.core.request import Request
from engine.core.sched_output import Reason
from engine.sampling_params import RequestOutputKind, SamplingParams
from engine.trace.reader import TraceReader
from engine.trace.replay import RequestHistory

End = Literal["stop", "length", "error", "abort", "stop_string", "unfinished"]
"""How a request ended in the recording. `stop_string`: the frontend found one and aborted it."""


class DraftRow(NamedTuple):
    """A row of the recorded run that verified drafts."""

    drafts: int
    confirmed: int
    accepted: int
    """Tokens that became output: confirmed + 1, unless the request ended among them."""


@dataclass
class ScriptedRequest:
    """One request of the recording. Steps are those of the recording."""

    history: RequestHistory
    end: End
    tokens: list[int]
    """Its output."""
    patience: int = 0
    """With `stop_string`: steps from its last token to the one before which it was aborted."""
    work: int = 0
    """Tokens that its rows computed, in all. With `error`, the row that reaches this is the one that fails."""
    rows: dict[int, DraftRow] = field(default_factory=dict)
    """By the length of the output before them: rows that verified drafts."""
    _starts: list[int] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        return self.history.request_id

    def drafts_at(self, num_outputs: int) -> tuple[int, int]:
        """(drafts, confirmed) for a row that starts behind so many tokens of output.

        A row that starts within what a recorded row accepted has the rest of that row's drafts.
        """
        if not self.rows:
            return 0, 0
        if not self._starts:
            self._starts = sorted(self.rows)
        index = bisect_right(self._starts, num_outputs) - 1
        if index < 0:
            return 0, 0
        start = self._starts[index]
        row, passed = self.rows[start], num_outputs - start
        if passed >= row.accepted > 0 or (passed and not row.accepted):
            return 0, 0
        return row.drafts - passed, max(0, row.confirmed - passed)

    def make(self) -> Request:
        """A new request that asks the same."""
        record = self.history.record
        request = Request(
            self.request_id,
            list(record["prompt"]),
            sampling_params(record["params"]),
            arrival_time=record["arrival"],
            priority=record["priority"],
            seed=record["seed"],
            lora_key=record["lora"],
            cache_salt=record["salt"],
        )
        if self.end == "stop":
            request.grammar = EndOfScript(len(self.tokens))
        return request


class EndOfScript:
    """Ends a request after so many tokens, as its end-of-sequence token did. Allows every token.

    A trace does not say which tokens are end-of-sequence, and a grammar may have ended the request as well; so
    the scripted run uses the seam by which grammars end requests (`grammar_iface.Grammar`).
    """

    def __init__(self, num_tokens: int) -> None:
        self._left = num_tokens

    def accept_tokens(self, token_ids: Any) -> bool:
        self._left -= len(token_ids)
        return True

    def validate_tokens(self, token_ids: Any) -> list[int]:
        return list(token_ids)

    def rollback(self, num_tokens: int) -> None:
        self._left += num_tokens

    def fill_bitmask(self, words: Any) -> None:
        raise RuntimeError("a scripted run has no logits to mask")

    def is_terminated(self) -> bool:
        return self._left <= 0


@dataclass
class Script:
    """A recorded run as what went in."""

    requests: list[ScriptedRequest]
    """By number, in order of arrival."""
    num_steps: int
    num_idle_at_end: int
    """Steps at the end in which nobody lived."""
    resets: set[int]
    """Steps before which the prefix cache was reset."""
    interrupted: set[int]
    """Steps that were planned and never computed: the engine dropped all requests and went on."""
    warnings: list[str]
    """What of the recording cannot be repeated, in sentences."""


class WalkedRow(NamedTuple):
    """One row of a step's batch, by request number."""

    number: int
    start: int
    """Position of the first token it computed."""
    num_tokens: int
    tokens: tuple[int, ...]
    """Output accepted."""
    num_outputs: int
    """Output before it."""


def walk(reader: TraceReader) -> Iterator[tuple[int, dict[str, Any], list[WalkedRow]]]:
    """(step, its record, its rows) of a whole run, in order: quicker than `reader.step` for each of them."""
    prompts = [request.num_prompt_tokens for request in reader.requests]
    outputs = [0] * len(prompts)
    computed: dict[int, int] = {}
    for step in range(reader.num_steps):
        record = reader.raw_step(step)
        for number, start, *_ in (*record.get("new", ()), *record.get("res", ())):
            computed[number] = start
        rows = []
        columns = (record.get("q", ()), record.get("n", ()), record.get("tok", ()))
        for number, num_tokens, said in zip(*columns, strict=True):
            tokens = () if said is None else (said,) if isinstance(said, int) else tuple(said)
            start = computed.get(number, 0)
            rows.append(WalkedRow(number, start, num_tokens, tokens, outputs[number]))
            outputs[number] += len(tokens)
            computed[number] = prompts[number] + outputs[number] - 1 if tokens else start + num_tokens
        yield step, record, rows


def read_script(reader: TraceReader) -> Script:
    """What went into a recorded run."""
    requests = [_scripted(history) for history in reader.requests]
    resets, idle = set(), 0
    ended = {r.history.ended for r in requests if not r.history.aborted or r.history.aborted_late}
    late = {r.history.ended: r for r in reversed(requests) if r.history.aborted_late and r.tokens}
    evictions = _count(event.step for event in reader.events("evict"))
    for step, record, rows in walk(reader):
        _note_drafts(requests, record, rows, late.get(step))
        for row in rows:
            requests[row.number].work += row.num_tokens
        if evictions.get(step, 0) > record.get("cnt", {}).get("num_evictions", 0):
            resets.add(step)  # the pool counts only what it loses to reuse
        idle = 0 if rows or record["run"] or record["wait"] or step in ended else idle + 1
    interrupted = {step for step in reader.error_steps if step < reader.num_steps}
    return Script(requests, reader.num_steps, idle, resets, interrupted, _warnings(reader))


def sampling_params(record: dict[str, Any]) -> SamplingParams:
    """Sampling parameters from what a trace says of them."""
    values = dict(record)
    if "output_kind" in values:
        values["output_kind"] = RequestOutputKind[values["output_kind"]]
    values.setdefault("skip_reading_prefix_cache", False)  # else derived from others
    words = values.pop("bad_words_token_ids", [])
    params = SamplingParams(**values)
    params.bad_words_token_ids = words
    return params


def _scripted(history: RequestHistory) -> ScriptedRequest:
    scripted = ScriptedRequest(history, _end_of(history), list(history.tokens))
    if history.ended is not None and scripted.end == "stop_string":
        said = len(history.tokens)
        spoke = history.row_steps[bisect_left(history.row_outputs, said)] if said else history.ended
        scripted.patience = history.ended - spoke
    return scripted


def _end_of(history: RequestHistory) -> End:
    if history.ended is None:
        return "unfinished"
    if history.aborted:
        return "stop_string" if history.finish_reason == "stop" else "abort"
    known: dict[str | None, End] = {"stop": "stop", "length": "length", "error": "error"}
    return known.get(history.finish_reason, "abort")


def _note_drafts(
    requests: list[ScriptedRequest],
    record: dict[str, Any],
    rows: list[WalkedRow],
    late: ScriptedRequest | None,
) -> None:
    """Rows that reach beyond what was known had drafts. Of a request that ended among them, the trace has only
    the tokens up to its end; the step's counter says how many drafts were confirmed beyond it. Another counter
    tells the drafts of a row that was aborted in flight, and so is not in the file."""
    beyond = record.get("cnt", {}).get("num_accepted_tokens", 0)
    hidden = record.get("cnt", {}).get("num_draft_tokens", 0)
    ended = {number for number, _ in record.get("fin", ())}
    drafted = []
    for row in rows:
        request = requests[row.number]
        num_drafts = row.start + row.num_tokens - request.history.num_prompt_tokens - row.num_outputs
        if num_drafts > 0:
            drafted.append((row, num_drafts))
            beyond -= max(0, len(row.tokens) - 1)
            hidden -= num_drafts
    if late is not None and hidden > 0:
        late.rows[len(late.tokens)] = DraftRow(hidden, 0, 0)
    for row, num_drafts in drafted:
        confirmed = max(0, len(row.tokens) - 1)
        if row.number in ended and row.tokens:
            more = min(num_drafts - confirmed, max(0, beyond))
            confirmed, beyond = confirmed + more, beyond - more
        requests[row.number].rows[row.num_outputs] = DraftRow(num_drafts, confirmed, len(row.tokens))


def _count(steps: Iterator[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for step in steps:
        counts[step] = counts.get(step, 0) + 1
    return counts


def _warnings(reader: TraceReader) -> list[str]:
    totals = reader.counter_totals()
    warnings = []
    if reader.steps_with(Reason.GRAMMAR_COMPILING):
        warnings.append(
            "some requests waited for their grammars to compile; here a grammar is ready when its request arrives"
        )
    if totals.get("num_kv_waits") or totals.get("external_prefix_cache_hits"):
        warnings.append(
            "KV came from other engines through a connector; here nothing comes, so those tokens are computed"
        )
    if totals.get("encoder_cache_queries"):
        warnings.append(
            "some prompts had images, which a trace does not hold; here their blocks have other hashes, and two "
            "images in the same place look alike to the prefix cache"
        )
    return warnings
