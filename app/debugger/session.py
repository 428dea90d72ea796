"""What a browser tab looks at: run, step, request, block. The URL says the same, so that it can be sent to others.

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
_DIGITS = 15
"""Of a step or block in an address: what a browser counts exactly."""


@dataclass(frozen=True)
class Selection:
    """Strings and numbers as they stand in the URL; None: nothing chosen."""

    run: str | None = None
    step: int = 0
    request: str | None = None
    block: int | None = None
    other: str | None = None
    """On the page Compare: the second run."""


def selection() -> Selection:
    """Of this tab. The first call reads the URL."""
    if _KEY not in st.session_state:
        st.session_state[_KEY] = _from_url(dict(st.query_params))
    found: Selection = st.session_state[_KEY]
    return found


def select(**changes: Any) -> Selection:
    """Change fields by name; another run starts at step 0 with nothing chosen."""
    before = selection()
    if "run" in changes and changes["run"] != before.run:
        before = Selection(other=before.other)
    st.session_state[_KEY] = after = replace(before, **changes)
    return after


def register_pages(pages: Mapping[str, Any]) -> None:
    """The pages (`st.Page`) of this script run, by URL path: what `go` can jump to."""
    st.session_state[_PAGES] = dict(pages)


def go(page: str, parameters: dict[str, str] | None = None, **changes: Any) -> NoReturn:
    """Jump to a page by its URL path, with the selection changed as by `select`. The rest of this run is skipped.

    parameters: what else that page reads from its address (`add_to_url`).
    Not for callbacks (`on_click=`), where Streamlit cannot change the page.
    """
    select(**changes)
    st.switch_page(st.session_state[_PAGES][page], query_params=permalink(selection()) | (parameters or {}))


def permalink(chosen: Selection) -> dict[str, str]:
    """A selection as the parameters of the address."""
    return {name: str(value) for name, value in asdict(chosen).items() if value not in (None, 0)}


def add_to_url(parameters: dict[str, str]) -> None:
    """What else the permalink of the page now being shown must say. The page reads it back from `st.query_params`."""
    st.session_state[_PAGE_KEY] = parameters


def write_url() -> None:
    """Make the address a permalink. Called at the end of every page."""
    wanted = permalink(selection()) | st.session_state.pop(_PAGE_KEY, {})
    if dict(st.query_params) != wanted:
        st.query_params.from_dict(wanted)


def _from_url(parameters: dict[str, str]) -> Selection:
    """What does not parse is left out: a damaged link still opens its run."""

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
    """The selected run, opened; None if none is selected. Raises TraceError for what cannot be opened."""
    run_id = selection().run
    return None if run_id is None else get_run(run_id)


def get_run(run_id: str) -> Run:
    """A run by id; recorded ones are opened once and kept while their file does not change, a live one has grown."""
    if run_id.startswith("live:"):
        return _live_view(run_id)
    path = path_of(run_id)
    try:
        state = path.stat()
    except OSError as error:  # deleted this very moment
        raise TraceError(
            f"cannot read {path}: {error.strerror}. The page Runs lists what there is"
        ) from error
    return _open(run_id, state.st_mtime_ns, state.st_size)


def _live_view(run_id: str) -> Run:
    """This tab's own view, so that it grows at no other moment than this."""
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
