"""Links to states of pages: the state is shown and stays in the address; a link to something unknown is answered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from app.debugger import main
from app.debugger.main import PAGES
from tests.app.debugger.pages import Opener, said

FOLDER = Path(main.__file__).parent
RUN = {"run": "memory-pressure", "step": "34"}
STATES: list[tuple[str, dict[str, str], str]] = [
    ("runs", RUN, "The prefix cache"),
    ("requests", {**RUN, "request": "eve"}, "Request eve"),
    ("blocks", {**RUN, "block": "5"}, "after step 34"),
    ("metrics", RUN, "Memory pressure"),
    ("compare", {**RUN, "other": "full-cache"}, "Memory pressure"),
    ("kernel", {**RUN, "request": "eve"}, "Memory pressure"),
    ("learn", {"tour": "ttft", "stop": "2"}, "3 of"),
    ("questions", {"question": "batching.static_vs_continuous"}, "continuous"),
    ("cards", {"card": "hardware.l4"}, "NVIDIA L4"),
    ("capacity", {"tp": "2"}, ""),
    ("mock", {}, ""),
    ("drill", {}, ""),
    ("live", {}, ""),
    ("server", {}, "/metrics"),
    ("step", {**RUN, "request": "eve", "block": "5"}, ""),
]
"""Page, parameters, and a part of what the page must say."""
UNKNOWN = [
    ("step", {"run": "nope"}, "no run 'nope'"),
    ("step", {"run": "live:7"}, "does not exist any more"),
    ("step", {**RUN, "step": "99999"}, "no step 99,999"),
    ("metrics", {**RUN, "step": "99999"}, "no step 99,999"),
    ("requests", {**RUN, "request": "nemo"}, "no request 'nemo'"),
    ("blocks", {**RUN, "block": "99999"}, "no block 99999"),
    ("compare", {"run": "nope", "other": "full-cache"}, "no run 'nope'"),
    ("compare", {**RUN, "other": "nope"}, "no run 'nope'"),
    ("kernel", {**RUN, "request": "nemo"}, "nemo"),
    ("live", {"run": "live:7"}, "does not exist any more"),
    ("live", {"attach": "nonsense"}, "not the address of a debug port"),
    ("server", {"url": "file:///etc/passwd"}, "http://"),
    ("capacity", {"ttft_ms": "abc"}, "ttft_ms cannot be 'abc'"),
    ("mock", {"interview": "nope"}, "no interview is called nope"),
    ("cards", {"card": "nope"}, "no card 'nope'"),
    ("learn", {"tour": "nope", "stop": "99"}, "no tour 'nope'"),
    ("questions", {"question": "nope"}, "nope"),
    ("mock", {"interview": "nope"}, "nope"),
    ("drill", {"drill": "nope"}, "'nope'"),
]


def address(app: AppTest) -> dict[str, Any]:
    return {name: value if isinstance(value, str) else value[-1] for name, value in app.query_params.items()}


def told(app: AppTest) -> str:
    toasts = "\n".join(each.value for each in app.toast)
    titles = "\n".join(each.value for each in [*app.title, *app.header])
    return "\n".join([said(app), toasts, titles]).replace("\\", "")


def test_every_page_is_in_the_list_and_has_a_state() -> None:
    listed, covered = {entry.module for entry in PAGES.values()}, {page for page, *_ in STATES}
    pages = [path for path in (FOLDER / "pages").glob("*.py") if "\ndef show() -> None:" in path.read_text()]
    missing = [
        f"pages/{path.name}: no row in PAGES of app/debugger/main.py"
        for path in pages
        if f"app.debugger.pages.{path.stem}" not in listed
    ]
    missing += [f"{page}: no state in STATES of this file" for page in PAGES if page not in covered]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(("page", "parameters", "words"), STATES)
def test_a_link_opens_its_state_and_stays_the_address(
    open_page: Opener, page: str, parameters: dict[str, str], words: str
) -> None:
    app = open_page(page, **parameters)
    assert not app.error and not app.toast
    assert words in told(app)
    assert address(app).items() >= parameters.items()
    assert address(app.run()).items() >= parameters.items()


@pytest.mark.parametrize(("page", "parameters", "words"), UNKNOWN)
def test_a_link_to_something_unknown_is_answered(
    open_page: Opener, page: str, parameters: dict[str, str], words: str
) -> None:
    assert words in told(open_page(page, **parameters))


def test_a_link_to_a_later_step_than_the_last_opens_the_last(open_page: Opener, trace: Path) -> None:
    app = open_page("metrics", trace, step=10**9)
    last = int(address(app)["step"])
    assert 0 < last < 10**9
    assert not open_page("metrics", trace, step=last).toast


def test_back_to_another_card_or_tour_shows_it(open_page: Opener) -> None:
    """The browser's Back changes the address of the same tab."""
    for page, name, value, words in (
        ("cards", "card", "hardware.l4", "NVIDIA L4"),
        ("learn", "tour", "ttft", "of"),
    ):
        app = open_page(page)
        before = address(app)
        app.query_params[name] = value
        assert words in told(app.run())
        assert address(app)[name] == value != before[name]
