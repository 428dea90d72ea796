"""The page Server over a small HTTP server with recorded /metrics: of `prep serve shop` and of vLLM 0.32.

Both recordings were made after the same six requests of 36 prompt tokens and 24 output tokens, with max_num_seqs 2;
vLLM got one for an unknown model as well.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import isnan
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.debugger.pages.server import Watch
from app.debugger.views.server_history import History, lines_of, times_of
from engine.server.scrape import Scrape, ScrapeError, fetch

RECORDED = Path(__file__).with_name("metrics")
CACHED_TOKENS = {"prep": 160, "vllm": 0}
"""vLLM's blocks on a CPU have 128 tokens, so no prompt of 36 tokens is cached."""


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text()


def fresh(text: str) -> str:
    """The same metrics before the first request."""
    return re.sub(r"^(vllm:.*) \S+$", r"\1 0.0", text, flags=re.MULTILINE)


class SmallServer:
    """Answers every request with `text` and `status`."""

    def __init__(self, port: int = 0) -> None:
        self.text, self.status, self.headers = "", 200, {}
        self.key = ""
        self.asked: list[tuple[str, str]] = []
        """Path and key of each request."""
        small = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                given = self.headers.get("Authorization", "")
                small.asked.append((self.path, given))
                refused = small.key and given != f"Bearer {small.key}"
                self.send_response(401 if refused else small.status)
                for name, value in small.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"" if refused else small.text.encode())

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[SmallServer]:
    server = SmallServer()
    yield server
    server.close()


def page() -> None:
    from app.debugger.pages import server

    server.show()


@pytest.fixture
def app() -> AppTest:
    return AppTest.from_function(page, default_timeout=30)


def status(app: AppTest) -> str:
    bodies = [element.proto.body for element in app.get("html")]
    return next((body for body in bodies if "server-status" in body), "")


def again(app: AppTest) -> History:
    """Run the page again, as it does every second, and return what it knows."""
    app.run()
    assert not app.exception
    watch: Watch = app.session_state["server watch"]
    return watch.history


def watch(app: AppTest, address: str, key: str = "") -> AppTest:
    app.run()
    app.text_input(key="server address").input(address)
    app.text_input(key="server key").input(key)
    next(button for button in app.button if button.label == "Watch").click()
    app.run()
    assert not app.exception
    return app


@pytest.mark.parametrize("name", ["prep", "vllm"])
def test_six_requests_of_either_server_are_what_the_page_shows(
    app: AppTest, server: SmallServer, name: str
) -> None:
    server.text = fresh(recorded(name))
    app.query_params["url"] = f"{server.url}/v1"
    first = again(app)
    assert "answers · shop" in status(app) and first.activity is None
    server.text = recorded(name)
    now = again(app).activity
    assert now is not None
    assert now.output_tokens_per_s * now.seconds == pytest.approx(144)
    assert now.prompt_tokens_per_s * now.seconds == pytest.approx(216)
    assert now.prefix_hit_rate == pytest.approx(CACHED_TOKENS[name] / 216)
    tables = [element.value for element in app.markdown if element.value.startswith("|")]
    assert "| ended requests | 6 |" in tables[1] and "| output tokens | 144 |" in tables[1]
    assert ("| responses with status 4xx or 5xx | 1 |" in tables[1]) == (name == "vllm"), "ours counts none"
    assert "–" not in tables[0], "each latency has three percentiles"
    assert app.get("bidi_component"), "the charts"
    assert {path for path, _ in server.asked} == {"/metrics"}


def test_the_server_goes_away_and_comes_back(app: AppTest) -> None:
    server = SmallServer()
    server.text = recorded("prep")
    watch(app, server.url)
    again(app)
    server.close()
    away = again(app)
    assert 'data-state="away"' in status(app) and "no server at" in status(app) and away.error is not None
    assert app.get("bidi_component"), "the charts stay"
    server = SmallServer(server.port)
    try:
        server.text = fresh(recorded("prep"))
        back = again(app)
        assert "answers" in status(app) and [mark.text for mark in back.marks] == ["went away", "restarted"]
        assert back.activity is None, "no window spans the restart"
    finally:
        server.close()


def test_a_server_that_starts_later_is_found(app: AppTest) -> None:
    server = SmallServer()
    server.close()
    watch(app, server.url)
    assert "No server at" in app.error[0].value and "`prep serve shop`" in app.error[0].value
    server = SmallServer(server.port)
    try:
        server.text = recorded("vllm")
        again(app)
        assert "answers · shop" in status(app) and not app.error
    finally:
        server.close()


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("python_info 1\n", 200, ["is not vLLM's: no metric begins with vllm:", "prep serve shop"]),
        ("<html>hello</html>", 200, ["is not vLLM's", "prep serve shop"]),
        ("", 404, ["status 404", "vLLM-compatible", "prep serve shop"]),
        ("", 503, ["status 503", "prep serve shop"]),
    ],
)
def test_other_pages_are_a_sentence_with_a_next_step(
    app: AppTest, server: SmallServer, text: str, code: int, says: list[str]
) -> None:
    server.text, server.status = text, code
    watch(app, server.url)
    assert all(words in app.error[0].value for words in says), app.error[0].value
    again(app)
    assert (len(server.asked) > 1) == (code == 503), "only what can pass is tried again"


def test_a_key_goes_to_its_server_and_nowhere_else(app: AppTest, server: SmallServer) -> None:
    server.key, server.text = "k-123", recorded("prep")
    watch(app, server.url)
    assert "asks for a key" in app.error[0].value and "--api-key" in app.error[0].value
    watch(app, server.url, "wrong")
    assert "refuses the key" in app.error[0].value
    watch(app, server.url, "k-123")
    assert "answers" in status(app) and not app.error
    assert "k-123" not in str(app.query_params)
    other = SmallServer()
    try:
        server.status, server.headers = 302, {"Location": f"{other.url}/metrics"}
        again(app)
        assert "status 302" in status(app) and not other.asked, "redirects are not followed"
    finally:
        other.close()


@pytest.mark.parametrize(
    "address", ["file:///etc/passwd", "http://user:secret@127.0.0.1", "http://h/?key=secret"]
)
def test_addresses_that_are_no_place_for_a_key_are_refused(app: AppTest, address: str) -> None:
    app.query_params["url"] = address
    app.run()
    assert not app.exception and "127.0.0.1:8000" in app.error[0].value
    assert "secret" not in app.error[0].value and not status(app)


def test_stop_ends_the_watch_also_of_an_address_from_the_url(app: AppTest, server: SmallServer) -> None:
    server.text = recorded("prep")
    app.query_params["url"] = server.url
    app.run()
    next(button for button in app.button if button.label == "Stop watching").click()
    app.run()
    assert not app.exception and not status(app)


def test_a_key_that_no_header_can_contain_and_a_page_without_end(
    server: SmallServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ScrapeError, match="no HTTP header"):
        fetch(server.url, "schlüssel")
    monkeypatch.setattr("engine.server.scrape.MAX_BYTES", 1 << 20)
    server.text = "# more\n" * 200_000
    with pytest.raises(ScrapeError, match="does not end within 1 MiB"):
        fetch(server.url)


def scrape(when: float, requests: float) -> Scrape:
    return Scrape(when, {"request_success_total": requests, "num_requests_running": requests}, {})


def test_rates_are_those_of_the_window_and_gaps_stay_empty() -> None:
    history = History(10)
    for second in range(30):
        history.add(scrape(100.0 + second, float(second * second)))
    assert history.activity is not None and history.activity.requests_per_s == (29**2 - 18**2) / 11
    history.set_window(30)
    assert history.activity.requests_per_s == 29
    history.add(scrape(150.0, 900.0))
    times, found = times_of(history)
    assert len(times) == len(found) and times == sorted(times) and times[0] == -60
    running = lines_of(history, found)[0]
    assert running.title == "Running" and isnan(running.high[0]) and running.high[2] == 1
    gap = [value for time, value in zip(times, running.high, strict=True) if -22 < time < -1]
    assert len(gap) == 1 and isnan(gap[0])


def test_only_the_last_minutes_are_kept() -> None:
    history = History(10)
    for second in range(0, 900, 2):
        history.add(scrape(float(second), 0.0))
    assert len(history.looks) == 151 and times_of(history)[0][0] == -300
