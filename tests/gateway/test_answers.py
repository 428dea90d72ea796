"""The reader of answers: what is whole, wherever the bytes are cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.server import answers
from engine.server.answers import DONE, SKIMMED, EventStream, body_fault

BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""The machine may be busy: no test asserts a time."""
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def event(content: dict[str, Any], end: str = "\n") -> bytes:
    return f"data: {json.dumps(content, ensure_ascii=False)}{end}{end}".encode()


def chunk(text: str, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": text, "finish_reason": finish}]}


def read(content: bytes, path: str = TEXT, *, skims: bool = False) -> EventStream:
    stream = EventStream(path, skims=skims)
    stream.feed(content)
    return stream


WHOLE = event(chunk("a")) + event(chunk("b", "stop")) + b"data: [DONE]\n\n"


@BUSY
@given(
    texts=st.lists(st.text(max_size=9), min_size=1, max_size=4),
    end=st.sampled_from(["\n", "\r\n"]),
    cuts=st.lists(st.integers(0, 400), max_size=6),
)
def test_a_stream_is_whole_in_any_pieces_and_cut_anywhere_it_is_not(
    texts: list[str], end: str, cuts: list[int]
) -> None:
    chunks = [chunk(text) for text in texts] + [chunk("", "stop")]
    comment = f": ping{end}{end}".encode()
    content = comment + b"".join(event(chunk, end) for chunk in chunks) + f"data: [DONE]{end}{end}".encode()
    bounds = sorted({min(cut, len(content)) for cut in cuts} | {0, len(content)})
    stream, found = EventStream(), []
    for start, stop in zip(bounds, bounds[1:], strict=False):
        found += stream.feed(content[start:stop])
    assert [each.content for each in found if each.content] == chunks
    assert stream.is_done and stream.fault is None and stream.num_chunks == len(chunks)
    assert b"".join(each.raw for each in found) == content
    for cut in bounds:
        broken = EventStream()
        passed = b"".join(each.raw for each in broken.feed(content[:cut]))
        assert broken.is_done or broken.fault is not None
        assert content.startswith(passed) and (not passed or passed.endswith(end.encode() * 2))
    assert read(content[: -2 * len(end)]).fault is not None, "[DONE] itself is cut"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "the stream ended without [DONE]"),
        (event(chunk("a")), "the stream ended without [DONE]"),
        (event(chunk("a", "stop")), "the stream ended without [DONE]"),
        (WHOLE[:-16], "the stream ended within an event"),
        (event(chunk("é"))[:40], "the stream ended within an event"),
        (b"hello world", "the stream ended within an event"),
        (b"hello\n\nworld\n\n", "the stream ended without [DONE]"),
        (b"data: [DONE]\n\n", "the stream ended without an answer"),
        (event({"choices": []}) + b"data: [DONE]\n\n", "the stream ended without an answer"),
        (event(chunk("a")) + b"data: [DONE]\n\n", "the stream ended without the finish_reason of choice 0"),
        (event(chunk("a", index=1)) + WHOLE, "the stream ended without the finish_reason of choice 1"),
        (b"data: {\n\n" + WHOLE, "an event that is not part of an answer"),
        (b"data: 3\n\n" + WHOLE, "an event that is not part of an answer"),
        (event({"choices": [1]}) + WHOLE, "an event that is not part of an answer"),
        (event({"choices": {"a": 1}}) + WHOLE, "an event that is not part of an answer"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "an event that is not part of an answer"),
        (event({"error": {"message": "x", "code": 503}}) + WHOLE, "error 503 in the stream"),
        (event(chunk("a")) + event({"error": {"message": "x"}}), "error 500 in the stream"),
        (event(chunk("a")) + event({"object": "error", "code": 400}) + WHOLE, "error 400 in the stream"),
    ],
)
def test_a_stream_that_is_not_whole_says_why(content: bytes, what: str) -> None:
    fault, skimmed = read(content).fault, read(content, skims=True).fault
    assert fault is not None and fault.what == what
    assert skimmed == fault or "choice 1" in what or "part of" in what, "it knows only what it parses"
    assert fault.is_error == what.startswith("error")


def test_what_is_whole_has_no_fault() -> None:
    usage = event({"choices": [], "usage": {"total_tokens": 8}})
    two = event(chunk("a", "stop", 1)) + event(chunk("error", "length", 0))
    for content in (WHOLE, two + usage + b"data: [DONE]\n\n" + b"data: {", event({"error": None}) + WHOLE):
        assert read(content).fault is None
    assert read(two + usage).total_tokens == 8
    chat = event({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]})
    assert read(chat + b"data:[DONE]\r\n\r\n", CHAT).fault is None
    split = b'data: {"choices":\ndata: [{"index": 0, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    assert read(split).fault is None, "the lines of one event belong together"


@BUSY
@given(text=st.text(max_size=20) | st.sampled_from(['"error": {', '"finish_reason": "stop"', '"usage": {']))
def test_a_skimming_reader_parses_only_what_says_more_than_text(text: str) -> None:
    usage = {"choices": [], "usage": {"total_tokens": 8}}
    content = event(chunk(text)) + event(chunk("", "stop")) + event(usage) + b"data: [DONE]\n\n"
    stream = EventStream(skims=True)
    assert [each.content for each in stream.feed(content)] == [SKIMMED, chunk("", "stop"), usage, None]
    assert stream.fault is None and (stream.num_chunks, stream.total_tokens) == (2, 8)
    both = {"choices": [*chunk(text)["choices"], *chunk("", "stop", 1)["choices"]]}
    assert read(event(both) + event(chunk("", "stop")) + b"data: [DONE]\n\n", skims=True).fault is None
    cut = read(event(both) + b"data: [DONE]\n\n", skims=True).fault
    assert cut is not None and "choice 0" in cut.what


def test_a_stream_of_responses_ends_with_its_event() -> None:
    path = "/v1/responses"
    begun = b"event: response.created\n" + event({"type": "response.created", "response": {"error": None}})
    done = event({"type": "response.completed", "response": {"usage": {"total_tokens": 5}}})
    failed = event({"type": "response.failed", "response": {"status": "failed", "error": {"code": "x"}}})
    assert read(begun + done, path).fault is None and read(begun + done, path).total_tokens == 5
    cut, bad = read(begun, path).fault, read(begun + failed, path).fault
    assert cut is not None and cut.what == "the stream ended without response.completed"
    assert bad is not None and bad.status == 500 and bad.is_error


def test_an_event_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_BYTES", 1000)
    stream = EventStream()
    for _ in range(11):
        assert not stream.is_over
        stream.feed(b"x" * 100)
    assert stream.is_over and stream.fault is not None and "longer than" in stream.fault.what


CHOICE = {"index": 0, "text": "a", "finish_reason": "stop"}
MESSAGE = {"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}


@pytest.mark.parametrize(
    ("path", "content", "what"),
    [
        (TEXT, None, "an answer that is not a JSON object"),
        (TEXT, {}, "an answer without choices"),
        (TEXT, {"choices": []}, "an answer without choices"),
        (TEXT, {"choices": "a"}, "an answer without choices"),
        (TEXT, {"choices": [CHOICE, 1]}, "an answer with choices without text"),
        (TEXT, {"choices": [MESSAGE]}, "an answer with choices without text"),
        (CHAT, {"choices": [CHOICE]}, "an answer with choices without message"),
        (TEXT, {"choices": [CHOICE | {"finish_reason": None}]}, "an answer with choices without finish_reason"),
        (TEXT, {"choices": [CHOICE], "error": {"code": 429}}, "error 429"),
        (TEXT, {"error": "overloaded"}, "error 500"),
        (TEXT, {"object": "error", "code": 400, "message": "x"}, "error 400"),
        ("/v1/embeddings", {"data": []}, "an answer without data"),
        ("/v1/responses", {"id": "r"}, "an answer without output"),
        ("/v1/responses", {"output": [], "status": "failed", "error": {"code": "x"}}, "error 500"),
    ],
)  # fmt: skip
def test_a_body_that_is_not_whole_says_why(path: str, content: Any, what: str) -> None:
    fault = body_fault(path, content)
    assert fault is not None and fault.what == what


def test_whole_bodies_have_no_fault() -> None:
    assert body_fault(TEXT, {"choices": [CHOICE], "error": None}) is None
    assert body_fault(CHAT, {"choices": [MESSAGE, MESSAGE]}) is None
    assert body_fault("/v1/embeddings", {"data": [{"embedding": [0.5]}]}) is None
    assert body_fault("/v1/responses", {"output": [], "status": "queued"}) is None
    assert DONE == b"[DONE]"
