"""The controls of a live engine: run, pause, step, pace, requests in and out, breakpoints, rewind, save, stop."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from itertools import takewhile
from typing import Any, TypeVar

import streamlit as st

from app.debugger.live import registry
from app.debugger.live.client import LiveError, LiveRun, LiveView
from app.debugger.live.start_form import PACES
from app.debugger.page_frame import in_words, plain, told
from app.debugger.session import select, selection
from engine.debug.breakpoints import EVENTS
from prep_common.text import counted

STATUS_EVERY_S = 0.5
LINES_S = 0.2
"""Longest wait for the lines of the trace that the engine has written when it is asked for its state."""
_SAID = "live said"
_ATTEMPTS = "live attempts"

T = TypeVar("T")


def attempt(action: Callable[[], T], done: Callable[[T], str] | None = None) -> T | None:
    """Run an action on an engine. Its error, or the message of `done`, stays on the page until the next action.

    Called from callbacks: it closes the popovers, which would hide the message.
    """
    st.session_state.pop(_SAID, None)
    st.session_state[_ATTEMPTS] = st.session_state.get(_ATTEMPTS, 0) + 1
    try:
        result = action()
    except (LiveError, OSError) as error:
        st.session_state[_SAID] = ("error", str(error))
        return None
    if done is not None:
        st.session_state[_SAID] = ("success", done(result))
    return result


def show_said() -> None:
    """Show the result of the last attempt."""
    if said := st.session_state.get(_SAID):
        kind, text = said
        (st.error if kind == "error" else st.success)(told(text))


def show_controls(view: LiveView) -> None:
    """Show the buttons; those that need a form open one."""
    live = view.live
    is_ours = registry.process_of(live.run_id) is not None
    bar = st.container(horizontal=True, vertical_alignment="center", key="live_bar")
    row = bar.container(horizontal=True, vertical_alignment="center")
    row.markdown("**Engine**", width="content")  # apart from the step view's own bar below
    if live.end is None:
        _run_buttons(row, live)
        _inject(_popover(row, "Inject"), live)
        _abort(_popover(row, "Abort"), view)
        _breakpoints(_popover(row, "Breakpoints"), live)
    if is_ours:
        _rewind(_popover(row, "Rewind"), live)
    _save(_popover(row, "Save"), live)
    leave = bar.container(horizontal=True, width="content")
    if live.end is None or is_ours:
        leave.button(
            "Stop" if is_ours else "Detach",
            on_click=lambda: attempt(lambda: registry.stop(live.run_id)),
            help="Ends the engine; the run so far is kept." if is_ours else "The engine continues.",
        )
    another_help = "This engine continues and stays in the list."
    leave.button("Another engine …", on_click=_choose_another, help=another_help)


def _popover(row: Any, name: str) -> Any:
    """A popover that is a new one, and closed, after every attempt."""
    return row.popover(f"{name} …", key=f"{name} {st.session_state.get(_ATTEMPTS, 0)}")


def _choose_another() -> None:
    select(run=None)


def _run_buttons(row: Any, live: LiveRun) -> None:
    if "pace" not in st.session_state:
        rate = live.info().get("steps_per_s")
        st.session_state["pace"] = next(
            (name for name, value in PACES.items() if value == rate), "full speed"
        )

    def run() -> None:
        attempt(lambda: live.tell("resume", steps_per_s=PACES[st.session_state["pace"]]))

    def set_pace() -> None:
        if not _is_paused(live):
            run()

    row.button("Run", on_click=run, type="primary" if _is_paused(live) else "secondary")
    row.button("Pause", on_click=lambda: attempt(lambda: live.tell("pause")))
    row.button("Step", on_click=lambda: attempt(lambda: live.tell("step", n=1)))
    row.button("Step 10", on_click=lambda: attempt(lambda: live.tell("step", n=10)))
    row.selectbox(
        "Pace", list(PACES), key="pace", on_change=set_pace, width=140, label_visibility="collapsed"
    )


def _inject(place: Any, live: LiveRun) -> None:
    with place.form("inject", border=False):
        st.text_area("Prompt", "What do you recommend?", key="inject prompt")
        length, priority, adapter = st.columns(3)
        length.number_input("Answer tokens", 1, 1024, 32, key="inject tokens")
        priority.number_input("Priority", -100, 100, 0, key="inject priority")
        adapter.text_input("Adapter", key="inject lora", placeholder="none")
        st.checkbox("use all tokens", value=True, key="inject full")
        st.form_submit_button("Inject", type="primary", on_click=_send_injected, args=(live,))


def _send_injected(live: LiveRun) -> None:
    prompt = st.session_state["inject prompt"]
    wish: dict[str, Any] = {
        "max_tokens": int(st.session_state["inject tokens"]),
        "priority": int(st.session_state["inject priority"]),
        "ignore_eos": st.session_state["inject full"],
    }
    if adapter := st.session_state["inject lora"].strip():
        wish["lora"] = adapter
    if live.info().get("takes_text", True):
        wish["messages"] = [{"role": "user", "content": prompt}]
    else:
        wish["prompt_token_ids"] = [int(word) for word in prompt.split() if word.isdecimal()]
    attempt(
        lambda: live.tell("inject", **wish),
        lambda answer: f"{', '.join(answer['request_ids'])} waits; the next step considers it.",
    )


def _abort(place: Any, view: LiveView) -> None:
    names = [request.request_id for request in view.index.requests if request.ended is None]

    def send() -> None:
        name = st.session_state["abort request"] or ""
        done = f"{name} is aborted: its blocks are free before the next step."
        attempt(lambda: view.live.tell("abort", request_id=name), lambda _: done)
        st.session_state["abort request"] = None  # it is no longer among the requests to choose from

    with place.form("abort", border=False):
        st.selectbox(
            "Request",
            names,
            key="abort request",
            accept_new_options=True,
            placeholder="its id",
            help="Unfinished requests when the page was last drawn; you can type any other id.",
        )
        st.form_submit_button("Abort it", on_click=send)


def _breakpoints(place: Any, live: LiveRun) -> None:
    now = live.info().get("breakpoints", [])
    # The keys contain the engine's list: after a rewind, and of another engine, the form shows that one.
    events, of_request, free = (f"break {what} {live.run_id} {now}" for what in ("events", "request", "free"))

    def send() -> None:
        wish: list[dict[str, Any]] = [{"event": name} for name in st.session_state[events]]
        if request := st.session_state[of_request].strip():
            wish.append({"request": request})
        if below := int(st.session_state[free]):
            wish.append({"free_below": below})
        done = f"{counted(len(wish), 'breakpoint')} set." if wish else "No breakpoints."
        attempt(lambda: live.tell("breakpoints", breakpoints=wish), lambda _: done)

    with place.form("breakpoints", border=False):
        st.caption("The engine pauses after the step.")
        chosen = [point["event"] for point in now if "event" in point]
        st.pills("after a step with", EVENTS, selection_mode="multi", default=chosen, key=events)
        named = next((point["request"] for point in now if "request" in point), "")
        st.text_input("anything about request", named, key=of_request)
        limit = next((point["free_below"] for point in now if "free_below" in point), 0)
        st.number_input("fewer free blocks than (0: off)", 0, 100_000, limit, key=free)
        st.form_submit_button("Set", on_click=send)


def _name(point: dict[str, Any]) -> str:
    """Name a breakpoint as in the engine's list: `preempt`, `finish of r3`, `any event of r3`, `free < 4`."""
    if "free_below" in point:
        return f"free < {point['free_below']}"
    of = f" of {point['request']}" if "request" in point else ""
    return f"{point.get('event', 'any event')}{of}"


def _rewind(place: Any, live: LiveRun) -> None:
    with place.form("rewind", border=False):
        st.caption(
            "Replay, not undo: the engine restarts with the same settings, receives the same requests and aborts "
            "before the same steps, and pauses after the given step. The current run is kept as a separate run."
        )
        st.number_input("To the state after step", 0, None, 0, key="rewind step")
        with st.container(horizontal=True):
            st.form_submit_button("Rewind", type="primary", on_click=_send_rewind, args=(live, False))
            st.form_submit_button("Rewind to the step on screen", on_click=_send_rewind, args=(live, True))


def _send_rewind(live: LiveRun, to_screen: bool) -> None:
    step = selection().step if to_screen else int(st.session_state["rewind step"])
    rewound = attempt(lambda: registry.rewind(live.run_id, step), lambda pair: _replayed(*pair))
    if rewound is not None:
        select(run=rewound[0].run_id, step=step)


def _replayed(new: LiveRun, how: dict[str, Any]) -> str:
    replayed = f"Replayed {counted(how['step'] + 1, 'step')} in {how['seconds']:g} s"
    if how["differs_at"] is None:
        return (
            f"{replayed} with the same decisions. This is {new.run_id}, paused: continue it, or change its requests "
            "first."
        )
    return (
        f"{replayed}, but step {how['differs_at']} decided differently than before: this engine is not deterministic. "
        "The page Compare shows the difference."
    )


def _save(place: Any, live: LiveRun) -> None:
    def send() -> None:
        attempt(
            lambda: registry.save(live.run_id, st.session_state["save name"]),
            lambda saved: f"Saved as {saved}. The page Runs lists it, and the page Compare can fork it.",
        )

    with place.form("save", border=False):
        st.text_input("Name", live.title, key="save name")
        st.form_submit_button("Save the run so far", on_click=send)


def show_status(view: LiveView, follow: bool) -> None:
    """Show a status line, which may refresh itself, and errors below it."""
    if follow and view.live.end is None:
        st.fragment(in_words(_follow_status), run_every=STATUS_EVERY_S)(view, _is_paused(view.live))
    else:
        _status_line(view)


def _follow_status(view: LiveView, was_paused: bool) -> None:
    if view.live.end is not None or _is_paused(view.live) != was_paused:
        st.rerun()  # the buttons below show this state
    _status_line(view)


def _is_paused(live: LiveRun) -> bool:
    return bool(live.info().get("paused"))


def _status_line(view: LiveView) -> None:
    live = view.live
    info = live.info()
    if live.end is None and live.lines.num_lines < info["num_lines"]:
        live.lines.read(info["num_lines"] - 1, LINES_S)
    step = view.catch_up().index.num_steps - 1
    st.html(
        f'<div role="status" class="live-status" data-step="{step}">{escape(_sentence(view, info))}</div>'
    )
    process = registry.process_of(live.run_id)
    if process is None:
        return
    if process.failure:
        whose = process.settings.scheduler_cls
        of = f" (the scheduler is {plain(whose)})" if whose else ""
        st.error(
            f"{told(process.failure)}{of}. The run so far is kept: save it, or rewind to an earlier step."
        )
    for name, why in list(process.refused.items())[-3:]:
        st.warning(f"{plain(name)} was rejected: {told(why)}")


def _sentence(view: LiveView, info: dict[str, Any]) -> str:
    """State, step and figures: `live:1 · paused: breakpoint in step 41: preempt of c · after step 41 · 5 running …`.

    The figures are those of the trace after its last step, as in all panels, not those of the engine's queues now.
    """
    live = view.live
    if live.end is not None:
        state = f"ended: {live.end}"
        if live.continued_as:
            state = f"rewound: {live.continued_as} continues it"
    elif info.get("paused"):
        state = f"paused: {info['stopped_by']}"
        if registry.process_of(live.run_id) is None:
            state += " (its clients wait and may time out)"
    elif not info.get("has_work", True):
        state = "idle: no requests; inject one"
    else:
        rate = info.get("steps_per_s")
        state = f"running at {rate:g} steps/s" if rate else "running at full speed"
    parts = [live.run_id, state]
    if live.end is None and (points := info.get("breakpoints")):
        parts.append(f"stops at {', '.join(_name(point) for point in points)}")
    return " · ".join(parts + _figures(view))


def _figures(view: LiveView) -> list[str]:
    """The last step, the counts after it, and what has changed since."""
    index, trace = view.index, view.reader(0)
    step = index.num_steps - 1
    added = sum(1 for _ in takewhile(lambda request: request.added > step, reversed(trace.requests)))
    aborted = sum(1 for _ in takewhile(lambda event: event.step > step, reversed(trace.events("abort"))))
    if step < 0:
        return ["before step 0", "0 running", f"{added - aborted} waiting"]
    series = index.series
    parts = [
        f"after step {step}",
        f"{series.running[step]} running",
        f"{series.waiting[step]} waiting",
        f"{series.free_blocks[step]} of {index.num_blocks - 1} blocks free",
    ]
    since = [f"{count} {what}" for count, what in ((added, "added"), (aborted, "aborted")) if count]
    return [*parts, f"since this step: {', '.join(since)}"] if since else parts
