"""The workload and output of a recorded run: all that a scheduler needs to run it again.

    script = read_script(TraceReader("run.itrace"))
    script.requests[3].tokens          # output of request 3
    script.requests[3].drafts_at(17)   # after 17 tokens of output: (drafts proposed, drafts confirmed)

A request's tokens depend on its own text alone, so another schedule yields the same tokens in other steps.
That makes a run repeatable without its model.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from engine.core.request import Request
from engine.core.sched_output import Reason
from engine.sampling_params import RequestOutputKind, SamplingParams
from engine.trace.history import RequestHistory
from engine.trace.protocol import Trace
from engine.trace.records import accepted_tokens

End = Literal["stop", "length", "error", "abort", "stop_string", "unfinished"]
"""End of a request in the recording. `stop_string`: the frontend found a stop string and aborted it."""


class DraftRow(NamedTuple):
    """A row of the recorded run that verified drafts."""

    drafts: int
    confirmed: int
    accepted: int  # tokens that became output: confirmed + 1, unless the request ended among them


@dataclass
class ScriptedRequest:
    """One request of the recording. Steps are those of the recording."""

    history: RequestHistory
    end: End
    tokens: list[int]  # its output
    patience: int = 0  # steps from its last token to its abort, for `stop_string`
    work: int = 0  # tokens that its rows computed. With `error`, the row that reaches this number fails.
    rows: dict[int, DraftRow] = field(default_factory=dict)  # by the length of the output before them
    _starts: list[int] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        return self.history.request_id

    def drafts_at(self, num_outputs: int) -> tuple[int, int]:
        """(drafts, confirmed) for a row that starts after `num_outputs` tokens of output.

        A row that starts among the tokens that a recorded row accepted has the rest of that row's drafts.
        """
        if len(self._starts) < len(self.rows):
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
        """Create a request like the recorded one."""
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
    """A grammar that allows every token and ends the request after `num_tokens`.

    A trace does not say which tokens are end-of-sequence, and a grammar may have ended the request; so a scripted
    run ends requests through the grammar protocol (`engine.core.grammar_protocol`).
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
    """The input of a recorded run."""

    requests: list[ScriptedRequest]  # all requests in order of arrival
    num_steps: int
    num_idle_at_end: int  # steps at the end without an unfinished request
    resets: set[int]  # steps before which the prefix cache was reset
    interrupted: set[int]  # steps that were planned and not computed: the engine dropped all requests
    warnings: list[str]  # sentences about what cannot be repeated


class WalkedRow(NamedTuple):
    """One row of a step's batch, by request number."""

    number: int
    start: int  # position of the first token it computed
    num_tokens: int
    tokens: tuple[int, ...]  # output accepted
    num_outputs: int  # output tokens before this row


def walk(reader: Trace) -> Iterator[tuple[int, dict[str, Any], list[WalkedRow]]]:
    """Yield (step, its record, its rows) of a whole run, in order; faster than `reader.step` for each step."""
    prompts = [request.num_prompt_tokens for request in reader.requests]
    outputs = [0] * len(prompts)
    computed: dict[int, int] = {}
    for step in range(reader.num_steps):
        record = reader.record(step)
        for number, start, *_ in (*record.get("new", ()), *record.get("res", ())):
            computed[number] = start
        rows = []
        columns = (record.get("q", ()), record.get("n", ()), record.get("tok", ()))
        for number, num_tokens, accepted in zip(*columns, strict=True):
            tokens, start = accepted_tokens(accepted), computed.get(number, 0)
            rows.append(WalkedRow(number, start, num_tokens, tokens, outputs[number]))
            outputs[number] += len(tokens)
            computed[number] = prompts[number] + outputs[number] - 1 if tokens else start + num_tokens
        yield step, record, rows


def read_script(reader: Trace) -> Script:
    """Extract the input of a recorded run."""
    requests = [_scripted(history) for history in reader.requests]
    resets, idle = set(), 0
    ended = {r.history.ended for r in requests if not r.history.aborted or r.history.aborted_late}
    late = {r.history.ended: r for r in reversed(requests) if r.history.aborted_late and r.tokens}
    evictions = Counter(event.step for event in reader.events("evict"))
    for step, record, rows in walk(reader):
        _note_drafts(requests, record, rows, late.get(step))
        for row in rows:
            requests[row.number].work += row.num_tokens
        if evictions[step] > record.get("cnt", {}).get("num_evictions", 0):
            resets.add(step)  # the pool counts only evictions for reuse
        idle = 0 if rows or record["run"] or record["wait"] or step in ended else idle + 1
    interrupted = {step for step in reader.error_steps if step < reader.num_steps}
    return Script(requests, reader.num_steps, idle, resets, interrupted, _warnings(reader))


def sampling_params(record: dict[str, Any]) -> SamplingParams:
    """Sampling parameters from their record in a trace."""
    values = {"skip_reading_prefix_cache": False} | record  # else derived from others
    if "output_kind" in values:
        values["output_kind"] = RequestOutputKind[values["output_kind"]]
    words = values.pop("bad_words_token_ids", [])
    params = SamplingParams(**values)
    params.bad_words_token_ids = words
    return params


def _scripted(history: RequestHistory) -> ScriptedRequest:
    scripted = ScriptedRequest(history, _end_of(history), list(history.tokens))
    if history.ended is not None and scripted.end == "stop_string":
        count = len(history.tokens)
        last = history.row_steps[bisect_left(history.row_outputs, count)] if count else history.ended
        scripted.patience = history.ended - last
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
    """Note the drafts of a step: a row that computes more than the known tokens has drafts.

    For a request that ended among its drafts the trace holds the tokens up to its end only; the step's counter of
    accepted drafts gives the rest. The counter of drafts gives those of a row aborted in flight, which the trace
    does not hold.
    """
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


def _warnings(reader: Trace) -> list[str]:
    totals = reader.counter_totals()
    warnings = []
    if reader.steps_with(Reason.GRAMMAR_COMPILING):
        warnings.append(
            "some requests waited for their grammars to compile; in a fork, a grammar is ready when its request arrives"
        )
    if totals.get("num_kv_waits") or totals.get("external_prefix_cache_hits"):
        warnings.append("KV was loaded from other engines through a connector; a fork computes those tokens")
    if totals.get("encoder_cache_queries"):
        warnings.append(
            "some prompts had images, which a trace does not hold; in a fork their blocks have other hashes, and the "
            "prefix cache cannot tell two images at the same position apart"
        )
    return warnings
