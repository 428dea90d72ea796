"""Answers of OpenAI's API as a client reads them: what came, and whether all of it came.

The end of a connection is not the end of an answer.

    a body      is whole if it is a JSON object of its path's shape whose choices have a finish_reason
    a stream    is whole if its choices have a finish_reason and [DONE] came; one of /v1/responses ends with an event
    an error    may stand in place of either, and in a stream also after some events; then [DONE] may follow (vLLM)

Functions of bytes without input or output, for clients of any library.
Sources: OpenAI's API reference; vLLM entrypoints/openai; HTML standard, 9.2.6 (server-sent events).
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

COMPLETIONS = "/v1/completions"
DONE = b"[DONE]"
MOST_BYTES = 64 << 20
"""Length of one event; longer ones are no answer."""
FINISH = b'"finish_reason":'
SKIMMED: dict[str, Any] = {"choices": [{}]}
"""Content of an event that was counted only."""
END_OF_EVENT = re.compile(rb"\n\r?\n")
LAST_OF_RESPONSES = ("response.completed", "response.incomplete")
CONTENT: dict[str, tuple[str, str, Any]] = {
    "/chat/completions": ("choices", "message", dict), "/completions": ("choices", "text", str),
    "/embeddings": ("data", "embedding", (list, str)), "/responses": ("output", "type", str),
}  # fmt: skip
"""End of a path -> the list in its body, and a field of each element with its type."""


class Fault(NamedTuple):
    """Reason why an answer is not whole."""

    what: str
    status: int = 502
    """Status of the error that the server sent instead; 502 if it sent none."""
    is_error: bool = False
    """The server said so itself, by an error."""


class Event(NamedTuple):
    """One event of a stream."""

    raw: bytes
    """As it came, with the empty line at its end."""
    content: dict[str, Any] | None
    """None: [DONE], or a comment."""


class EventStream:
    """Reader of one streamed answer: bytes in, whole events out. At the end of the bytes, ask for its `fault`.

        stream = EventStream()
        for received in response.iter_bytes():
            for event in stream.feed(received): ...
        if fault := stream.fault: ...

    An event that is cut is never returned, so that an error event may follow what was passed on. Lines end with \\n or
    \\r\\n.
    """

    def __init__(self, path: str = COMPLETIONS, *, skims: bool = False) -> None:
        """skims: do not parse events with nothing but one more piece of text; their content is SKIMMED."""
        self._skims = skims
        self.is_done = False
        """The end of the answer has come; what follows is ignored."""
        self.error: Fault | None = None
        """The first error event."""
        self.num_chunks = 0
        """Events with a part of the answer."""
        self.total_tokens = 0
        """Prompt and output tokens by the last usage; 0 before it comes."""
        self._is_responses = path.endswith("/responses")
        self._rest = bytearray()
        self._wrong: Fault | None = None
        self._begun: set[int] = set()
        self._finished: set[int] = set()

    @property
    def is_over(self) -> bool:
        """Whether no further byte changes anything: the answer has ended, or it is none."""
        return self.is_done or self._wrong is not None

    @property
    def fault(self) -> Fault | None:
        """Reason why the answer is not whole if no more bytes come; None for a whole one."""
        if self.error is not None or self._wrong is not None:
            return self.error or self._wrong
        if not self.is_done:
            last = LAST_OF_RESPONSES[0] if self._is_responses else "[DONE]"
            end = "within an event" if self._rest.strip() else f"without {last}"
            return Fault(f"the stream ended {end}")
        if not self.num_chunks:
            return Fault("the stream ended without an answer")
        if (missing := self._begun - self._finished) or not self._finished:
            return Fault(f"the stream ended without the finish_reason of choice {min(missing, default=0)}")
        return None

    def feed(self, received: bytes) -> list[Event]:
        """Take in bytes and return the events that they complete."""
        start, scanned = 0, max(0, len(self._rest) - 2)
        self._rest += received
        events: list[Event] = []
        while not self.is_over and (end := END_OF_EVENT.search(self._rest, scanned)):
            raw = bytes(self._rest[start : end.end()])
            start = scanned = end.end()
            if (event := self._read(raw)) is not None:
                events.append(event)
        del self._rest[:start]
        if len(self._rest) > MOST_BYTES and not self.is_over:
            self._wrong = Fault(f"an event longer than {MOST_BYTES >> 20} MiB")
        if self.is_over:
            self._rest.clear()
        return events

    def _read(self, raw: bytes) -> Event | None:
        data = _data(raw)
        if data is None:
            return Event(raw, None)
        if data == DONE:
            self.is_done = True
            return Event(raw, None)
        if self._skims and _is_text_only(data):
            self.num_chunks += 1
            return Event(raw, SKIMMED)
        content = json_object(data)
        if content is None or not self._take(content):
            self._wrong = Fault("an event that is not part of an answer")
            return None
        return Event(raw, content)

    def _take(self, content: dict[str, Any]) -> bool:
        """Count what an event says; return False if it is malformed."""
        if (error := error_of(content)) is not None:
            self.error = self.error or error._replace(what=f"error {error.status} in the stream")
            return True
        if self._is_responses:
            self._begun.add(0)
            self.num_chunks += 1
            self.total_tokens = usage(content.get("response")) or self.total_tokens
            if content.get("type") in LAST_OF_RESPONSES:
                self._finished.add(0)
                self.is_done = True
            return True
        choices = content.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            return False
        for choice in choices:
            index = choice.get("index", 0)
            if not isinstance(index, int):
                return False
            self._begun.add(index)
            if choice.get("finish_reason"):
                self._finished.add(index)
        self.num_chunks += bool(choices)
        self.total_tokens = usage(content) or self.total_tokens
        return True


def body_fault(path: str, content: dict[str, Any] | None) -> Fault | None:
    """Return what keeps the body of a status 200 from being a whole answer of this path; None for a whole one."""
    if content is None:
        return Fault("an answer that is not a JSON object")
    if (error := error_of(content)) is not None:
        return error
    name, field, kind = next(shape for end, shape in CONTENT.items() if path.endswith(end))
    parts = content.get(name)
    if not isinstance(parts, list) or not (
        parts or name == "output"
    ):  # one in the background has no output yet
        return Fault(f"an answer without {name}")
    for part in parts:
        if not isinstance(part, dict) or not isinstance(part.get(field), kind):
            return Fault(f"an answer with {name} without {field}")
        if name == "choices" and not part.get("finish_reason"):
            return Fault("an answer with choices without finish_reason")
    return None


def error_of(content: dict[str, Any]) -> Fault | None:
    """Return the error that an object carries instead of an answer or a part of one."""
    response = content.get("response")  # of an event response.failed
    for holder in (content, response if isinstance(response, dict) else {}):
        error = holder.get("error")
        if error is None and (holder.get("object") == "error" or holder.get("type") == "error"):
            error = holder
        if error is None and holder.get("status") == "failed":
            error = {}
        if error is not None:
            code = str(error.get("code") if isinstance(error, dict) else "")
            status = int(code) if re.fullmatch(r"[45]\d\d", code) else 500
            return Fault(f"error {status}", status, is_error=True)
    return None


def json_object(content: bytes | bytearray) -> dict[str, Any] | None:
    """Return the object that these bytes are in JSON; None for anything else."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def usage(content: Any, name: str = "total_tokens") -> int:
    """Return a count of the usage of a body or a chunk; 0 without one."""
    counts = content.get("usage") if isinstance(content, dict) else None
    count = counts.get(name) if isinstance(counts, dict) else None
    return count if isinstance(count, int) and count > 0 else 0


def _is_text_only(data: bytes) -> bool:
    """Return whether an event is one more piece of one text. JSON escapes quotes, so no text looks like a field."""
    at = data.find(FINISH)
    return (
        data.startswith((b"null", b" null"), at + len(FINISH))
        and data.find(FINISH, at + 1) < 0 <= at
        and not (b'"error"' in data or b'"usage":{' in data or b'"usage": {' in data)
        and data.endswith(b"}")
    )


def _data(raw: bytes) -> bytes | None:
    """Return the data of an event; None for one without, such as a comment."""
    if raw[:6] == b"data: " and raw.find(b"\n") == len(raw) - 2:
        return raw[6:-2]
    lines = [line[5:].removeprefix(b" ") for line in raw.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
