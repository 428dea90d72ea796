"""The selection of a browser tab: run, step, request, block. The URL contains it, so that it can be shared.

    /step?run=memory-pressure&step=42&request=c&block=17

Pages read `selection()`, change it with `select(...)`, and jump to one another with `go("step", step=42)`. Runs are
shared by all tabs and never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

import streamlit as st

from app.debugger.catalogue import title_of
from app.debugger.runs import Run, open_run, path_of
from engine.trace.format import TraceError

_KEY = "selection"
_PAGE_KEY = "page parameters"
_PAGES = "pages"
_WRITTEN = "written address"
_LINKED = "followed link"
_DIGITS = 15
"""Maximum step or block in a URL: the largest integer that a browser represents exactly."""


@dataclass(frozen=True)
class Selection:
    """The values in the URL; None: nothing is selected."""

    run: str | None = None
    step: int = 0
    request: str | None = None
    block: int | None = None
    other: str | None = None
    """The second run on the page Compare."""


def selection() -> Selection:
    """The selection of this tab. The first call reads the URL."""
    if _KEY not in st.session_state:
        st.session_state[_KEY] = _from_url(dict(st.query_params))
    selected: Selection = st.session_state[_KEY]
    return selected


def adopt_url() -> None:
    """Take over the selection from the address if something else than this tab's script changed it: the browser's Back
    and Forward. A page chosen in the row of pages has an address without a selection."""
    said = dict(st.query_params)
    written = st.session_state.get(_WRITTEN)
    st.session_state[_LINKED] = {} if said == written else dict(said)
    st.session_state[_WRITTEN] = said
    if "run" in said and written not in (None, said):
        st.session_state[_KEY] = _from_url(said)
    selection()


def linked(name: str) -> str | None:
    """Return a page's parameter (`add_to_url`) of an address that was opened or reached with Back or Forward; None if
    there is none or the page itself wrote the address."""
    value: str | None = st.session_state.get(_LINKED, {}).get(name)
    return value


def select(**changes: Any) -> Selection:
    """Change fields by name; another run starts at step 0 with nothing selected."""
    before = selection()
    if "run" in changes and changes["run"] != before.run:
        before = Selection(other=before.other)
    st.session_state[_KEY] = after = replace(before, **changes)
    return after


def register_pages(pages: Mapping[str, Any]) -> None:
    """Set the pages (`st.Page`) of this script run, by URL path, for `go`."""
    st.session_state[_PAGES] = dict(pages)


def go(page: str, parameters: dict[str, str] | None = None, **changes: Any) -> NoReturn:
    """Jump to a page by its URL path, with the selection changed as by `select`. The rest of this run is skipped.

    parameters: what else that page reads from its address (`linked`).
    Not for callbacks (`on_click=`), where Streamlit cannot change the page.
    """
    select(**changes)
    st.session_state[_WRITTEN] = permalink(selection())
    wanted = st.session_state[_WRITTEN] | (parameters or {})
    st.switch_page(st.session_state[_PAGES][page], query_params=wanted)


def permalink(chosen: Selection) -> dict[str, str]:
    """A selection as URL parameters."""
    return {name: str(value) for name, value in asdict(chosen).items() if value not in (None, 0)}


def add_to_url(parameters: dict[str, str]) -> None:
    """Add parameters to the permalink of the current page, which reads them back with `linked`."""
    st.session_state[_PAGE_KEY] = parameters


def write_url() -> None:
    """Make the URL a permalink. Called at the end of every page."""
    wanted = permalink(selection()) | st.session_state.pop(_PAGE_KEY, {})
    st.session_state[_WRITTEN] = wanted
    if dict(st.query_params) != wanted:
        st.query_params.from_dict(wanted)


def _from_url(parameters: dict[str, str]) -> Selection:
    """A selection from URL parameters; invalid values are ignored, so that a damaged link still opens its run."""

    def number(name: str) -> int | None:
        text = parameters.get(name, "")
        return int(text) if text.isdecimal() and len(text) <= _DIGITS else None

    return Selection(
        parameters.get("run"),
        number("step") or 0,
        parameters.get("request"),
        number("block"),
        parameters.get("other"),
    )


def current_run() -> Run | None:
    """Open the selected run; None if none is selected. Raises TraceError if it cannot be opened."""
    run_id = selection().run
    return None if run_id is None else get_run(run_id)


def get_run(run_id: str) -> Run:
    """A run by id. Recorded runs are cached until their file changes; a live run is brought up to date."""
    if run_id.startswith("live:"):
        return _live_view(run_id)
    path = path_of(run_id)
    try:
        state = path.stat()
    except OSError as error:  # deleted in the meantime
        raise TraceError(f"cannot read {path}: {error.strerror}. The page Runs lists all runs") from error
    return _open(run_id, state.st_mtime_ns, state.st_size)


def _live_view(run_id: str) -> Run:
    """This tab's view of a live run, which grows only here."""
    from app.debugger.live.registry import view

    views = st.session_state.setdefault("live views", {})
    if run_id not in views:
        views[run_id] = view(run_id)
    grown: Run = views[run_id].catch_up()
    return grown


@st.cache_resource(max_entries=4, show_spinner="Reading the run …")
def _open(run_id: str, mtime_ns: int, size: int) -> Run:
    run = open_run(run_id)
    run.title = title_of(run_id) or run.title
    return run
