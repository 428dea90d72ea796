"""Page Runs: the list of runs, and ways to add one: a file, a recording, a running engine."""

from __future__ import annotations

import streamlit as st

from app.debugger import session
from app.debugger.catalogue import HERO, Entry, Glance, glance, load_catalogue
from app.debugger.live.registry import live_runs
from app.debugger.own_runs import Recording, delete, keep_upload, rename
from app.debugger.page_frame import in_words, plain, told
from app.debugger.runs import list_runs, path_of
from engine.trace.format import TraceError

COLUMNS = 4


def show() -> None:
    st.title("Runs")
    st.caption(
        "Runs of the engine with the shipped model. Viewing them loads no model, and everything here runs on this "
        "machine."
    )
    groups: dict[str, list[Entry]] = {}
    for entry in load_catalogue().values():
        groups.setdefault(entry.group, []).append(entry)
    [hero] = groups.pop(HERO)
    _hero(hero)
    _live()
    _own()
    with st.container(key="recorded"):
        for group, entries in groups.items():
            st.header(group)
            for place, entry in enumerate(entries):
                if place % COLUMNS == 0:
                    row = st.columns(COLUMNS, gap="small")
                with row[place % COLUMNS]:
                    _card(entry)
    left, right = st.columns(2)
    with left:
        _open_a_file()
    with right:
        _record()
        _attach()


def _hero(entry: Entry) -> None:
    """Show the run with which to begin."""
    preview = _glance(entry.id)
    with st.container(border=True, key="hero"):
        words, picture = st.columns([1, 2], gap="medium", vertical_alignment="center")
        with words:
            st.header(HERO)
            st.markdown(f"{entry.story} Each line is the life of a request; below are the free blocks.")
            opens = f"Open at step {preview.step}"
            if st.button(entry.title, key=f"open_{entry.id}", type="primary", width="stretch", help=opens):
                session.go("step", run=entry.id, step=preview.step)
            st.caption(preview.in_words)
        picture.html(preview.picture)


def _card(entry: Entry) -> None:
    with st.container(border=True, height="stretch"):
        preview = _glance(entry.id)
        if st.button(
            entry.title, key=f"open_{entry.id}", width="stretch", help=f"Open at step {preview.step}"
        ):
            session.go("step", run=entry.id, step=preview.step)
        st.markdown(entry.story)
        st.html(preview.picture)
        st.caption(preview.in_words)


def _glance(run_id: str) -> Glance:
    state = path_of(run_id).stat()
    return _read_glance(run_id, state.st_mtime_ns, state.st_size)


@st.cache_data(max_entries=200, show_spinner=False)
def _read_glance(run_id: str, mtime_ns: int, size: int) -> Glance:
    return glance(session.get_run(run_id))


def _live() -> None:
    runs = live_runs()
    if not runs:
        return
    st.header("Live")
    for run in runs:
        name, button = st.columns([5, 1], vertical_alignment="center")
        state = "runs" if run.end is None else f"ended: {run.end}"
        name.markdown(f"**{plain(run.title)}** · {plain(run.run_id)} · {plain(state)}")
        if button.button("Open", key=f"open_{run.run_id}", width="stretch"):
            session.go("live" if run.end is None else "step", run=run.run_id)


def _own() -> None:
    mine = [entry for entry in list_runs() if entry.run_id.startswith("mine:")]
    if not mine:
        return
    st.header("Your runs")
    for entry in mine:
        with st.container(border=True):
            facts, *buttons = st.columns([6, 1, 1, 1.2], vertical_alignment="center")
            try:
                preview = _glance(entry.run_id)
            except (TraceError, OSError) as error:
                facts.error(told(error))
                preview = None
            if preview is not None:
                facts.markdown(f"**{plain(entry.path.stem)}** · {preview.in_words}")
                for warning in preview.warnings:
                    facts.caption(f"⚠ {told(warning)}")
                if buttons[0].button("Open", key=f"open_{entry.run_id}", width="stretch"):
                    session.go("step", run=entry.run_id, step=preview.step)
                if buttons[1].button("Verify", key=f"verify_{entry.run_id}", width="stretch"):
                    _verify(entry.run_id)
            with buttons[2].popover("Manage", width="stretch"):
                _manage(entry.run_id)


def _manage(run_id: str) -> None:
    name = st.text_input("New name", run_id.removeprefix("mine:"), key=f"name_{run_id}")
    renames = st.button("Rename", key=f"rename_{run_id}")
    deletes = _wants_to_delete(run_id)
    try:
        if renames:
            rename(run_id, name)
        elif deletes:
            delete(run_id)
        else:
            return
    except TraceError as error:
        st.error(told(error))
    else:
        st.rerun()


def _wants_to_delete(run_id: str) -> bool:
    """Ask before a deletion, with Cancel as the default; returns whether it is confirmed."""
    asked = f"asked_to_delete_{run_id}"

    def ask(is_asked: bool) -> None:
        st.session_state[asked] = is_asked

    if not st.session_state.get(asked):
        st.button("Delete …", key=f"delete_{run_id}", on_click=ask, args=(True,))
        return False
    st.caption(f"Delete {plain(run_id.removeprefix('mine:'))}? This cannot be undone.")
    row = st.container(horizontal=True)
    row.button("Cancel", key=f"keep_{run_id}", type="primary", on_click=ask, args=(False,))
    if not row.button("Delete this run", key=f"confirm_{run_id}"):
        return False
    ask(False)
    return True


def _verify(run_id: str) -> None:
    """Replay the run and compare it with the engine's checksums in the file."""
    problems = session.get_run(run_id).reader(0).problems
    if not problems:
        st.success(f"{run_id}: every step was replayed and matches the engine's recorded checks.")
        return
    first = min(problems)
    st.error(f"{run_id}: first bad step {first.step}. {told(first.message)}")


def _open_a_file() -> None:
    st.header("Open a file")
    with st.form("path", border=False):
        box, button = st.columns([4, 1], vertical_alignment="bottom")
        path = box.text_input("Path of a trace (*.itrace)", placeholder="run.itrace")
        if button.form_submit_button("Open", width="stretch") and path:
            _open(f"file:{path}")
    upload = st.file_uploader("or drop a file here; it is kept with your runs", type=None, key="upload")
    if upload is not None and st.session_state.get("kept_upload") != upload.file_id:
        try:
            run_id = keep_upload(upload.name, upload.getbuffer())
        except TraceError as error:
            st.error(told(error))
        else:
            st.session_state["kept_upload"] = upload.file_id
            _open(run_id)


def _open(run_id: str) -> None:
    try:
        preview = _glance(run_id)
    except (TraceError, OSError) as error:
        st.error(told(error))
        return
    session.go("step", run=run_id, step=preview.step)


def _record() -> None:
    st.header("Record a run")
    st.caption(
        "Part 2 of `prep demo`: six requests with too few blocks. Loads the model and takes about 15 s."
    )
    recording: Recording | None = st.session_state.get("recording")
    if recording is None:
        if st.button("Record a demo"):
            st.session_state["recording"] = Recording()
            st.rerun()
    else:
        _follow(recording)


def _attach() -> None:
    st.header("Attach to a running engine")
    st.caption("Start an engine with `--debug-port 0`: it prints its address.")
    with st.form("attach", border=False):
        box, button = st.columns([4, 1], vertical_alignment="bottom")
        url = box.text_input("Address", placeholder="http://127.0.0.1:PORT/?token=…")
        if button.form_submit_button("Attach", width="stretch") and url:
            st.session_state["attach"] = url
            session.go("live")


@st.fragment(run_every=0.5)
@in_words
def _follow(recording: Recording) -> None:
    """Show a recording in progress; at its end, open the run."""
    outcome = recording.poll()
    if outcome is None:
        st.info(f"recording, {recording.seconds:.0f} s")
        if st.button("Stop", key="stop_recording"):
            recording.stop()
            del st.session_state["recording"]
            st.rerun()
        return
    del st.session_state["recording"]
    if outcome.error:
        st.error(told(outcome.error))
        return
    assert outcome.run_id is not None
    session.go("step", run=outcome.run_id, step=_glance(outcome.run_id).step)
