"""Page Server: a running server, live, from its /metrics: ours, or any with vLLM's names. `prep top` in the browser."""

from __future__ import annotations

import time
from dataclasses import dataclass
from html import escape

import streamlit as st

from app.debugger import session
from app.debugger.charts.lines import time_charts
from app.debugger.diagnosis import section as diagnosis
from app.debugger.page_frame import in_words, told
from app.debugger.views.server_history import COLUMN_S, History, lines_of, times_of
from engine.server.scrape import PERCENTILES, Activity, ScrapeError, base_of, fetch
from prep_common.text import counted, duration

EVERY_S = 1.0
TIMEOUT_S = 3.0
WINDOWS_S = (10, 30, 60)
LATENCIES = {
    "ttft": "first token (TTFT)",
    "itl": "next token (ITL)",
    "e2e": "whole request (E2E)",
}
COUNTS = {
    "requests": "ended requests",
    "errors": "failed",
    "rejections": "rejected at a full queue",
    "http_errors": "responses with status 4xx or 5xx",
    "preemptions": "preemptions",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
}
_WATCH = "server watch"
_ADDRESS = "server address"
_REFUSED = "server refused"


@dataclass
class Watch:
    """The server that this tab watches. Its key goes to this address only, and never into the URL of the page."""

    base: str
    api_key: str
    history: History
    away_since: str = ""


def show() -> None:
    st.title("Server")
    if _ADDRESS not in st.session_state:
        st.session_state[_ADDRESS] = address = st.query_params.get("url", "")
        if address:
            _start(address, "")
    window_s = _show_form()
    if refused := st.session_state.get(_REFUSED):
        _show_error(refused)
    watch: Watch | None = st.session_state.get(_WATCH)
    if watch is None:
        st.caption(
            "Shows requests, KV cache, tokens per second and latencies of a running server, from its /metrics: "
            "of `prep serve shop`, or of any vLLM. `prep top URL` shows the same in a terminal."
        )
        return
    watch.history.set_window(window_s)
    session.add_to_url({"url": watch.base})
    diagnosis.show(watch.base, watch.api_key)
    st.fragment(in_words(_look), run_every=EVERY_S)()


def _show_form() -> float:
    """Show address, key and window; returns the window in seconds."""
    with st.form("server form", border=False):
        row = st.container(horizontal=True, vertical_alignment="bottom")
        row.text_input("Address", key=_ADDRESS, placeholder="http://127.0.0.1:8000", width=340)
        row.text_input("Key, if the server wants one", key="server key", type="password", width=220)
        row.form_submit_button("Watch", type="primary", on_click=_start_typed)
    row = st.container(horizontal=True, vertical_alignment="bottom")
    window_s = row.segmented_control(
        "Window of rates and percentiles", WINDOWS_S, default=WINDOWS_S[0], format_func=lambda s: f"{s} s",
        key="server window", required=True,
    )  # fmt: skip
    if _WATCH in st.session_state:
        row.button("Stop watching", on_click=_stop)
    return float(window_s or WINDOWS_S[0])


def _start_typed() -> None:
    _start(st.session_state[_ADDRESS], st.session_state["server key"].strip())


def _start(address: str, api_key: str) -> None:
    _stop()
    try:
        st.session_state[_WATCH] = Watch(base_of(address), api_key, History(WINDOWS_S[0]))
    except ScrapeError as error:
        st.session_state[_REFUSED] = error


def _stop() -> None:
    st.session_state.pop(_WATCH, None)
    st.session_state.pop(_REFUSED, None)


def _look() -> None:
    """Look at the server once, and show what is known."""
    watch: Watch = st.session_state[_WATCH]
    history = watch.history
    if history.last is not None or history.error is None or history.error.is_down:
        try:
            history.add(fetch(watch.base, watch.api_key, TIMEOUT_S))
            watch.away_since = ""
        except ScrapeError as error:
            history.fail(error, time.monotonic())
            watch.away_since = watch.away_since or time.strftime("%H:%M:%S")
    if history.last is None:
        assert history.error is not None
        _show_status("waits for" if history.error.is_down else "cannot watch", watch)
        _show_error(history.error)
        if history.error.is_down:
            st.caption("The page tries again every second.")
        return
    _show_status("away" if watch.away_since else "answers", watch)
    _show_charts(history)
    _show_tables(history)


def _show_status(state: str, watch: Watch) -> None:
    last = watch.history.last
    models = ", ".join(last.models) if last is not None else ""
    words = {
        "answers": f"answers · {models}",
        "away": f"went away at {watch.away_since}: {watch.history.error}. The page tries again every second",
        "waits for": "does not answer yet",
        "cannot watch": "cannot be watched",
    }[state]
    mark = {"answers": "●", "away": "✕"}.get(state, "○")
    st.html(
        f'<div role="status" class="server-status" data-state="{state}">{mark} '
        f"<b>{escape(watch.base)}</b> {escape(words)}</div>"
    )


def _show_error(error: ScrapeError) -> None:
    text = str(error)
    step = " ".join(error.next_step.split()).replace("prep serve shop", "`prep serve shop`")
    st.error(told(f"{text[:1].upper()}{text[1:]}." + (f" Next: {step}." if step else "")))


def _show_charts(history: History) -> None:
    times, activities = times_of(history)
    lines = lines_of(history, activities)
    time_charts(
        times,
        lines,
        marks=[(mark.when - history.now - COLUMN_S, mark.kind, mark.text) for mark in history.marks],
        alt=f"{counted(len(lines), 'chart')} over the last {-times[0]:.0f} seconds: "
        + "; ".join(f"{line.title} {line.now} {line.unit}" for line in lines),
        hint=f"The last {-times[0]:.0f} s; rates and percentiles over {history.window_s:.0f} s.   "
        "✕ went away  • answers again",
        key="server_lines",
    )


def _show_tables(history: History) -> None:
    now, last = history.activity, history.last
    assert last is not None
    left, right = st.columns(2)
    left.markdown(
        "\n".join(
            [
                f"| Latency, last {history.window_s:.0f} s | "
                + " | ".join(f"p{p}" for p in PERCENTILES)
                + " |",
                "|---|" + "--:|" * len(PERCENTILES),
                *(
                    f"| {words} | " + " | ".join(_times(now, name)) + " |"
                    for name, words in LATENCIES.items()
                ),
            ]
        )
    )
    totals = Activity.between(last, last).totals
    right.markdown(
        "\n".join(
            [
                "| Since the server started | |",
                "|---|--:|",
                *(f"| {words} | {totals[name]:,.0f} |" for name, words in COUNTS.items() if name in totals),
            ]
        )
    )
    st.caption(
        "Percentiles are interpolated in the buckets of the server's histograms, as Prometheus does. "
        "– : nothing happened in the window."
    )


def _times(activity: Activity | None, name: str) -> list[str]:
    values = [getattr(activity, f"{name}_p{percent}", None) for percent in PERCENTILES]
    return ["–" if value is None else duration(value) for value in values]
