"""The form that forks a recorded run with changed settings, and the progress of the fork."""

from __future__ import annotations

import re
from typing import Any

import streamlit as st

from app.debugger import session
from app.debugger.fork_process import ForkOutcome, ForkProcess
from app.debugger.live import registry
from app.debugger.own_runs import twin_of
from app.debugger.page_frame import in_words, plain, told
from app.debugger.runs import Run, path_of, runs_dir
from engine.trace.files import unused_path
from engine.trace.format import TraceError
from engine.trace.knobs import KNOBS, Knob, Settings, parse_knobs, read_settings

FORK_AT = "fork_at"
"""Session key: the step at which the form opens; absent while it is closed."""
_PROCESS, _SAID, _TWIN = "fork_process", "fork_said", "fork_twin"
EXAMPLES = {
    "as recorded": "",
    "shortest prompt first": "app.debugger.example_schedulers:ShortestFirst",
    "prefill first": "app.debugger.example_schedulers:PrefillFirst",
    "decode first": "app.debugger.example_schedulers:DecodeFirst",
    "another class": "own",
}
CHOICES = {"scheduling_policy": ("fcfs", "priority"), "preemption_mode": ("recompute", "swap")}


def forkable(run: Run) -> str:
    """The id of a recording to fork: the run itself, or the recording of a live run, which is saved now."""
    if not run.run_id.startswith("live:"):
        return run.run_id
    return registry.save(run.run_id, f"{run.title} to step {run.index.num_steps - 1}")


def show_fork_form(run: Run) -> None:
    """Show the form or the fork in progress, and the result of the last fork."""
    if _PROCESS in st.session_state:
        _show_progress()
        return
    said: ForkOutcome | str | None = st.session_state.get(_SAID)
    if isinstance(said, str):
        st.error(told(said))
    elif said is not None and said.failure:
        st.error(f"{told(said.failure)} The run up to there is B.")
    if not run.index.num_steps:
        st.info("This run has no steps to fork.")
        return
    if run.run_id.startswith("live:"):
        _offer_to_save(run)
        return
    try:
        settings = read_settings(run.reader(0))
    except TraceError as error:
        st.warning(told(error))
        return
    _show_form(run, settings)


def show_twin(other: str) -> None:
    """Say that run B, if it is the result of the last fork, was kept already."""
    if st.session_state.get(_TWIN) == other:
        name = plain(other.removeprefix("mine:"))
        st.info(f"This fork equals {name}, which is kept already. {name} is B; no second file was saved.")


def _offer_to_save(run: Run) -> None:
    row = st.container(horizontal=True, vertical_alignment="center")
    if row.button("Save and fork", type="primary", key="fork_live"):
        session.select(run=forkable(run), step=st.session_state.get(FORK_AT, session.selection().step))
        st.rerun()
    row.caption("A fork starts from a recording: this saves the live run so far among your runs.")


def _show_form(run: Run, settings: Settings) -> None:
    last = run.index.num_steps - 1
    opened_at = min(st.session_state.get(FORK_AT, session.selection().step), last)
    with st.container(border=True):
        step_box, class_box, own_box = st.columns([1, 1.4, 2], vertical_alignment="bottom")
        at = int(
            step_box.number_input(
                f"Fork at step, 0 to {last:,}", 0, last, opened_at, key=f"fork_step_{run.run_id}_{opened_at}",
                help="The first step with the new settings. Memory (blocks, block size) can change at step 0 only.",
            )
        )  # fmt: skip
        choice = class_box.selectbox("Scheduler", list(EXAMPLES), key="fork_class")
        dotted = EXAMPLES[choice]
        if dotted == "own":
            dotted = own_box.text_input(
                "Class", key="fork_own", placeholder="my_file:MyScheduler",
                help="module:Class, importable from the folder where prep app was started. It runs in a child process.",
            ).strip()  # fmt: skip
        elif dotted:
            own_box.caption(f"`{dotted}`")
        with st.form("fork_form", border=False):
            changes = _knobs(settings, at, run.run_id)
            if st.form_submit_button("Run the fork", type="primary"):
                _start(run, at, changes, dotted or None)


def _knobs(settings: Settings, at: int, run_id: str) -> dict[str, Any]:
    """Show a field per knob with its recorded value, disabled where it can change at step 0 only. Returns the changed
    ones."""
    left_out = () if settings.cache.tiers.block_bytes > 0 else ("swap_space",)  # it needs the bytes per block
    knobs = [knob for knob in KNOBS.values() if knob.name not in left_out]
    columns = st.columns(4)
    changes = {}
    for place, knob in enumerate(knobs):
        now = settings.get(knob.name)
        with columns[place % 4]:
            is_fixed = bool(at) and not knob.live
            value = _field(knob, now, f"fork_{run_id}_{knob.name}{'_fixed' if is_fixed else ''}", is_fixed)
        if not is_fixed and value != (0 if now is None else now):
            changes[knob.name] = value
    return changes


def _field(knob: Knob, now: Any, key: str, is_fixed: bool) -> Any:
    words = f"{knob.help[:1].upper()}{knob.help[1:]}. Recorded: {now}"
    if is_fixed:
        words += ". A running engine cannot change it: fork at step 0"
    if knob.kind is bool:
        write = {True: "on", False: "off"}.__getitem__
        return st.selectbox(
            knob.name,
            (True, False),
            0 if now else 1,
            key=key,
            help=words,
            format_func=write,
            disabled=is_fixed,
        )
    if knob.name in CHOICES:
        options = CHOICES[knob.name]
        return st.selectbox(knob.name, options, options.index(now), key=key, help=words, disabled=is_fixed)
    if knob.kind is float:
        return st.number_input(knob.name, 0.0, value=float(now or 0), key=key, help=words, disabled=is_fixed)
    return int(
        st.number_input(knob.name, 0, value=int(now or 0), step=1, key=key, help=words, disabled=is_fixed)
    )


def _start(run: Run, at: int, changes: dict[str, Any], dotted: str | None) -> None:
    st.session_state.pop(_SAID, None)
    try:
        parse_knobs(changes, at)
        folder = runs_dir()
        folder.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^A-Za-z0-9_.-]", "-", run.run_id.rpartition("/")[2].removesuffix(".itrace"))
        out = unused_path(folder / f"{name.removeprefix('mine-')}-at{at}{_suffix(changes, dotted)}.itrace")
        st.session_state[_PROCESS] = ForkProcess(
            path_of(run.run_id), out, at=at, changes=changes, scheduler_cls=dotted
        )
    except (TraceError, OSError) as error:
        st.session_state[_SAID] = str(error)
    st.rerun()


def _suffix(changes: dict[str, Any], dotted: str | None) -> str:
    """The changes, as part of a file name."""
    words = [
        f"{name.replace('max_num_', '').replace('enable_', '')}-{value}" for name, value in changes.items()
    ]
    words += [dotted.rpartition(":")[2]] if dotted else []
    return "".join(f"-{re.sub(r'[^A-Za-z0-9_.-]', '-', word)}" for word in words[:3])[:60]


@st.fragment(run_every=0.3)
@in_words
def _show_progress() -> None:
    process: ForkProcess | None = st.session_state.get(_PROCESS)
    if process is None:
        return
    try:
        outcome = process.poll()
    except TraceError as error:
        _end(str(error))
        return
    if outcome is not None:
        _end(outcome)
        return
    bar, stop = st.columns([5, 1], vertical_alignment="center")
    words = f"Step {process.step:,} of about {process.of:,}" if process.of else "Reading the recorded run …"
    bar.progress(min(1.0, process.step / process.of) if process.of else 0.0, text=words)
    if stop.button("Cancel", key="fork_cancel", width="stretch"):
        process.cancel()
        _end("The fork was cancelled and its file removed.")


def _end(said: ForkOutcome | str) -> None:
    """Keep the result. A finished fork, or the kept run that it equals, becomes run B."""
    del st.session_state[_PROCESS]
    st.session_state[_SAID] = said
    st.session_state.pop(_TWIN, None)
    if isinstance(said, ForkOutcome):
        st.session_state.pop(FORK_AT, None)
        path = said.path
        if twin := twin_of(path):
            path.unlink()
            path = twin
            st.session_state[_TWIN] = f"mine:{twin.stem}"
        session.select(other=f"mine:{path.stem}", step=0)
        st.session_state.pop("compare_pair", None)
    st.rerun()
