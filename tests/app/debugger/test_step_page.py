"""The page Step without a browser: what it sends, and what it does with what the browser says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.app.debugger.pages import Opener
from tests.app.debugger.step_messages import open_envelope, unpack

KEY = "step_view"


def sent(app: AppTest) -> tuple[dict[str, Any], dict[str, bytes]]:
    (component,) = app.get("bidi_component")
    return open_envelope(component.proto.bytes)


def say(app: AppTest, **message: Any) -> AppTest:
    """As the browser would."""
    here = {"run": sent(app)[0]["run"], "step": 0, "request": None, "block": None}
    app.session_state[KEY] = {"say": here | message}
    app.run()
    assert not app.exception, [(error.message, error.stack_trace) for error in app.exception]
    return app


def test_the_first_answer_holds_all_that_the_first_picture_needs(open_page: Opener, trace: Path) -> None:
    head, parts = sent(open_page("step", trace, step=30, request="r5", block=9))
    assert sorted(parts) == ["d:0", "o", "w:0"]
    assert unpack(parts["o"])[0]["last"] > 30
    assert {name: head["jump"][name] for name in ("step", "request", "block")} == {
        "step": 30,
        "request": "r5",
        "block": 9,
    }


def test_what_the_browser_asks_for_is_sent_and_nothing_twice(open_page: Opener, trace: Path) -> None:
    app = open_page("step", trace)
    say(app, need=["b:3:0", "r:r1", "nonsense", "w:-4"], sequence=1)
    head, parts = sent(app)
    assert (head["answer"], sorted(parts)) == (1, ["b:3:0", "r:r1"])
    say(app, rest=True)
    assert sent(app)[1] == {}


def test_the_address_follows_the_browser_and_the_browser_is_not_sent_back(
    open_page: Opener, trace: Path
) -> None:
    app = open_page("step", trace, step=3)
    before = sent(app)[0]["jump"]["id"]
    say(app, step=41, request="r2", block=7, rest=True)
    assert sent(app)[0]["jump"]["id"] == before
    shown = {name: app.query_params[name] for name in ("step", "request", "block")}
    assert shown == {"step": "41", "request": "r2", "block": "7"}


def test_a_jump_by_another_page_reaches_the_browser(open_page: Opener, trace: Path) -> None:
    from dataclasses import replace

    app = open_page("step", trace, step=3)
    before = sent(app)[0]["jump"]["id"]
    app.session_state["selection"] = replace(app.session_state["selection"], step=12)
    app.run()
    jump = sent(app)[0]["jump"]
    assert (jump["id"], jump["step"]) == (before + 1, 12)


def test_what_is_said_of_another_run_is_not_taken_for_this_one(open_page: Opener, trace: Path) -> None:
    app = open_page("step", trace, step=3)
    say(app, run="another", step=41, need=["r:r1"], sequence=9)
    head, parts = sent(app)
    assert (head["answer"], parts, head["jump"]["step"]) == (0, {}, 3)


def test_a_step_that_the_run_has_not_shows_its_last(open_page: Opener, trace: Path) -> None:
    head, parts = sent(open_page("step", trace, step=99_999))
    assert sorted(parts) == ["d:0", "o", "w:0"]
    assert head["jump"]["step"] == head["num_steps"] - 1


def test_without_a_run_the_page_says_where_there_are_some(open_page: Opener) -> None:
    app = open_page("step", None)
    assert "No run is open" in app.info[0].value
    assert not app.get("bidi_component")


@pytest.mark.parametrize("content", [b"", b"not a trace at all"])
def test_a_file_that_is_no_trace_is_said_in_a_sentence(
    open_page: Opener, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "broken.itrace").write_bytes(content)
    app = open_page("step", tmp_path / "broken.itrace")
    assert "is not a trace" in app.error[0].value


def test_a_run_that_was_cut_off_opens_with_a_warning(open_page: Opener, trace: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.itrace"
    cut.write_bytes(trace.read_bytes()[:-200])
    app = open_page("step", cut)
    assert any("truncated" in caption.value for caption in app.caption)
    assert unpack(sent(app)[1]["o"])[0]["last"] > 0
