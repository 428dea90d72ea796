"""Watch the server for some seconds, walk the decision trees, and show the path with its evidence."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import streamlit as st

from app.debugger.diagnosis.report import as_html
from app.debugger.page_frame import in_words, told
from app.debugger.tabs import Job
from engine.server.diagnosis.collect import Sources, collect
from engine.server.diagnosis.evidence import Evidence, EvidenceError, load, save
from engine.server.diagnosis.verdict import Diagnosis, diagnose
from engine.server.scrape import ScrapeError, base_of

STYLE = Path(__file__).with_name("diagnosis.css")
WINDOWS_S = (10, 30, 60)
EVERY_S = 0.5
_STATE = "diagnosis"
_BASELINE = "diagnosis baseline"
T = TypeVar("T")


@dataclass
class Diagnosing:
    """One diagnosis of this tab: under way, or its result."""

    sources: Sources
    baseline: Evidence | None
    job: Job | None = None
    spent_s: float = 0.0
    evidence: Evidence | None = None
    diagnosis: Diagnosis | None = None
    at: str = ""

    def start(self) -> None:
        self.job = Job("diagnosis", self._work)

    def _work(self) -> None:
        self.evidence = collect(self.sources, lambda spent: setattr(self, "spent_s", spent))
        self.at = time.strftime("%H:%M:%S")
        self.diagnosis = diagnose(self.evidence, self.baseline)


def show(base: str, api_key: str) -> None:
    """Show the section for the server that the page watches."""
    st.html(STYLE)
    state: Diagnosing | None = st.session_state.get(_STATE)
    if state is not None and state.sources.bases != (base,):
        st.session_state.pop(_STATE)
        st.session_state.pop(_BASELINE, None)
        state = None
    is_busy = state is not None and state.job is not None and not state.job.is_done
    with st.expander("Diagnose: which cause fits these figures?", expanded=state is not None):
        sources = _form(base, api_key, is_busy=is_busy)
        if sources is not None:
            _begin(sources)
        if state is not None and is_busy:
            _watch(state)
        elif state is not None:
            _result(state)


def _form(base: str, api_key: str, *, is_busy: bool) -> Sources | None:
    """Show what to look at; return it when a diagnosis is asked for."""
    row = st.container(horizontal=True, vertical_alignment="bottom")
    window = row.segmented_control(
        "Seconds to watch", WINDOWS_S, default=WINDOWS_S[0], key="diagnosis window", required=True
    )
    probe = row.checkbox(
        "Send a probe: about ten small requests", key="diagnosis probe", help="Shows what a client sees"
    )
    asks = row.button("Diagnose", type="primary", key="diagnosis_start", disabled=is_busy)
    log = gateway = gateway_key = ""
    uploaded = None
    if row.toggle("More evidence", key="diagnosis more"):
        left, right = st.columns(2)
        log = left.text_input(
            "Request log: a file on this machine", key="diagnosis log", placeholder="requests.jsonl"
        )
        uploaded = right.file_uploader(
            "Baseline: evidence of a healthy time", type="gz", key="diagnosis upload"
        )
        gateway = left.text_input(
            "Gateway before the server", key="diagnosis gateway", placeholder="http://127.0.0.1:9000"
        )
        gateway_key = right.text_input("Its admin key", key="diagnosis gateway key", type="password")
    if not asks:
        return None
    try:
        if uploaded is not None:
            st.session_state[_BASELINE] = _in_folder(lambda path: _loaded(path, uploaded.getvalue()))
        entry = base_of(gateway.strip()) if gateway.strip() else ""
    except (EvidenceError, ScrapeError) as error:
        _problem(error)
        return None
    logs = (Path(log.strip()).expanduser(),) if log.strip() else ()
    return Sources(
        (base,),
        api_key,
        float(window or WINDOWS_S[0]),
        logs,
        probe=probe,
        gateway=entry,
        gateway_key=gateway_key,
    )


def _begin(sources: Sources) -> None:
    st.session_state[_STATE] = state = Diagnosing(sources, st.session_state.get(_BASELINE))
    state.start()
    st.rerun()


@st.fragment(run_every=EVERY_S)
@in_words
def _watch(state: Diagnosing) -> None:
    total = state.sources.window_s
    st.progress(min(1.0, state.spent_s / total), f"watching: {state.spent_s:.0f} of {total:.0f} s")
    if state.job is None or state.job.is_done:
        st.rerun()


def _result(state: Diagnosing) -> None:
    assert state.job is not None
    if state.job.error is not None:
        _problem(state.job.error)
    elif state.diagnosis is not None:
        st.html(as_html(state.diagnosis))
    if state.evidence is None:
        return
    with st.container(horizontal=True, vertical_alignment="center"):
        kept = st.session_state.get(_BASELINE)
        if st.button("Compare later ones with this", key="diagnosis_keep", disabled=kept is state.evidence):
            st.session_state[_BASELINE] = state.evidence
            st.rerun()
        evidence = state.evidence
        st.download_button(
            "Download the evidence",
            lambda: _in_folder(lambda path: _bytes(evidence, path)),
            "evidence.gz",
            "application/gzip",
            key="diagnosis_download",
        )
        window = f"{state.sources.window_s:.0f} s until {state.at}"
        compared = "compared with a baseline" if state.baseline is not None else "without a baseline"
        st.caption(f"{window}, {compared}", width="content")


def _problem(error: BaseException) -> None:
    if isinstance(error, OSError):
        error = EvidenceError(f"the request log cannot be read: {error.strerror}")
    text = str(error)
    step = getattr(error, "next_step", "")
    st.error(told(f"{text[:1].upper()}{text[1:]}." + (f" Next: {step}." if step else "")))


def _in_folder(work: Callable[[Path], T]) -> T:
    with TemporaryDirectory(prefix="prep-evidence-") as folder:
        return work(Path(folder) / "evidence.gz")


def _loaded(path: Path, content: bytes) -> Evidence:
    path.write_bytes(content)
    return load(path)


def _bytes(evidence: Evidence, path: Path) -> bytes:
    save(evidence, path)
    return path.read_bytes()
