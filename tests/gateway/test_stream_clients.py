"""Every client of ours that reads a stream, before servers that break it off: load, probe, first token."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from app.bench.first_served import first_token
from engine.config import ConfigError
from engine.server.diagnosis.probe import probe
from engine.server.load_client import Due, Load, LoadReport, Objective
from engine.server.scrape import ScrapeError, fetch
from tests.gateway.misbehaving import DONE, JSON, Script, backend, events, part

TEXT = "/v1/completions"
ONE, LAST = part(TEXT, "a"), part(TEXT, "b", "stop")
USAGE = {"choices": [], "usage": {"completion_tokens": 2, "total_tokens": 7}}
WHOLE = events(ONE, LAST, USAGE, DONE)
ENDED = "the stream ended "
BROKEN = {
    "nothing": (Script(b""), ENDED + "without [DONE]"),
    "clean end": (Script(events(ONE)), ENDED + "without [DONE]"),
    "usage, no [DONE]": (Script(events(ONE, LAST, USAGE)), ENDED + "without [DONE]"),
    "cut in an event": (Script(WHOLE[:40], framing="chunked"), ENDED + "within an event"),
    "cut in [DONE]": (Script(WHOLE[:-1], framing="length"), ENDED + "within an event"),
    "only [DONE]": (Script(events(DONE)), ENDED + "without an answer"),
    "unfinished": (Script(events(ONE, USAGE, DONE)), ENDED + "without the finish_reason of choice 0"),
    "rubbish": (Script(events(ONE, b"data: {\n\n", LAST, DONE)), "an event that is not part of an answer"),
    "error first": (Script(events({"error": {"message": "x", "code": 500}}, DONE)), "error 500 in the stream"),
    "error": (Script(events(ONE, {"error": {"message": "x"}}, DONE)), "error 500 in the stream"),
    "error, then cut": (Script(events(ONE, {"error": "x"}), framing="length", missing=9), "error 500 in the stream"),
    "no last chunk": (Script(events(ONE), framing="chunked", missing=1), "RemoteProtocolError"),
    "too short": (Script(WHOLE[:-14], framing="length", missing=14), "RemoteProtocolError"),
    "a page": (Script(b"<html>", "text/html", framing="length"), ENDED + "within an event"),
    "a 500": (Script(b"{}", JSON, 500, "length"), "HTTP 500"),
}  # fmt: skip


def load(script: Script) -> LoadReport:
    with backend(script) as (url, _):
        return asyncio.run(
            Load(url, "", None, Objective(e2e=60), timeout_s=30).run([Due(0.0, [1, 2], 2)] * 2)
        )


@pytest.mark.parametrize("name", BROKEN)
def test_a_load_counts_an_answer_that_is_not_whole_as_an_error(name: str) -> None:
    script, what = BROKEN[name]
    report = load(script)
    assert report.errors == {what: 2}
    assert (report.num_sent, report.num_done, report.num_running, report.good_share) == (2, 0, 0, 0.0)
    assert report.output_tokens == 0 and report.ttft is None


@pytest.mark.parametrize("framing", ["chunked", "close", "length"])
@pytest.mark.parametrize("missing", [0, 9])
def test_a_load_counts_an_answer_as_whole_however_its_connection_ends(framing: str, missing: int) -> None:
    report = load(Script(WHOLE, framing=framing, missing=missing))
    assert report.errors == {} and report.num_done == 2 and report.output_tokens == 4


def test_a_load_needs_the_usage_of_an_answer() -> None:
    for usage in ({}, {"total_tokens": 3}, {"completion_tokens": "2"}, "much"):
        script = Script(events(ONE, LAST, {"choices": [], "usage": usage}, DONE))
        assert load(script).errors == {"a stream without usage": 2}


def test_a_load_says_when_a_server_lists_no_model() -> None:
    async def run() -> None:
        listing = Load("http://x", "", None, Objective(), timeout_s=30)
        listing._client = httpx.AsyncClient(
            base_url="http://x", transport=httpx.MockTransport(lambda _: httpx.Response(200, json={}))
        )
        with pytest.raises(httpx.HTTPError, match="/v1/models lists no model"):
            await listing.run([])

    asyncio.run(run())


@pytest.mark.parametrize("name", BROKEN)
def test_the_probe_of_diagnose_names_what_is_wrong_with_an_answer(name: str) -> None:
    script, what = BROKEN[name]
    with backend(script) as (url, _):
        answers = probe(url, "")
    assert [answer.error for answer in answers] == [what] * 2


def test_the_probe_takes_a_whole_answer() -> None:
    with backend(Script(WHOLE, framing="chunked")) as (url, _):
        answers = probe(url, "", ["shop"])
    assert {(answer.error, answer.finish_reason) for answer in answers} == {("", "stop")} and answers[
        0
    ].ttft > 0


def test_a_page_of_metrics_that_is_cut_within_a_number_is_no_scrape() -> None:
    page = b'vllm:num_requests_running{model_name="shop"} 12.0\n'
    with backend(Script(b"", page=page)) as (url, _):
        assert fetch(url).values["num_requests_running"] == 12
    for cut in (1, 4):
        with (
            backend(Script(b"", page=page[:-cut])) as (url, _),
            pytest.raises(ScrapeError, match="within a line"),
        ):
            fetch(url)


@pytest.mark.parametrize("name", ["nothing", "only [DONE]", "error first", "a page", "a 500"])
def test_an_error_is_no_first_token(name: str) -> None:
    with backend(BROKEN[name][0]) as (url, _), pytest.raises(ConfigError, match="sent no token|refused"):
        first_token(url, "shop")


def test_the_first_token_is_the_first_chunk() -> None:
    with backend(Script(WHOLE, framing="chunked")) as (url, _):
        assert first_token(url, "shop") > 0
