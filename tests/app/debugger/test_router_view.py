"""The view Router of the page Capacity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from app.cli.main import app as cli
from app.debugger.capacity import router_view
from engine.sim.route_log import RouteLog, read_routes
from engine.sim.router import ROUTERS
from tests.app.debugger.pages import Opener, said

LINK = {"view": "router", "rate": 60, "prefix_share": 0.8, "num_prefixes": 12}


def drawn(app: AppTest) -> dict[str, Any]:
    """The data of the picture."""
    [component] = app.get("bidi_component")
    data: dict[str, Any] = json.loads(component.proto.json)
    return data


def test_every_router_of_the_simulator_is_drawn_with_its_reasons(
    open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_view, "NUM_REQUESTS", 150)
    router_view._simulated.clear()
    app = open_page("capacity", **LINK)
    assert not app.exception and app.query_params["view"] == "router"
    kinds = {}
    for router in ROUTERS:
        app.selectbox(key="router name").set_value(router).run()
        assert not app.exception and not app.error, router
        data = drawn(app)
        assert len(data["choices"]) == router_view.NUM_REQUESTS and len(data["lanes"]) == 4
        assert sum(int(lane.split("\n")[1].split()[0]) for lane in data["lanes"]) == router_view.NUM_REQUESTS
        kinds[router] = {choice[5] for choice in data["choices"]}
        levels = [data[name][lane] for name in ("running", "waiting", "kv") for lane in range(4)]
        assert {len(each) for each in levels} == {len(data["times"])}
    assert kinds["prefix-affinity"] == {"prefix", "load"} and kinds["round-robin"] == {"turn"}
    assert kinds["consistent-hash"] == {"ring"} and kinds["least-loaded"] == {"load"}


def test_requests_with_one_prefix_have_one_colour(open_page: Opener) -> None:
    app = open_page("capacity", **LINK)
    app.session_state["router colour"] = "prefix"
    app.run()
    colours = {(choice[2], choice[8]) for choice in drawn(app)["choices"]}
    assert len(colours) == 12 and len({colour for _, colour in colours}) == 7


def test_without_a_common_prefix_the_page_says_what_to_raise(open_page: Opener) -> None:
    app = open_page("capacity", view="router")
    assert "No prompt has a common prefix" in said(app)
    too_large = open_page("capacity", view="router", model="llama-3.1-405b")
    assert not too_large.exception and "does not fit" in too_large.error[0].value


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("routes") / "run.json"
    options = "--model llama-3-8b --gpu h100 --replicas 2 --router prefix-affinity --num-prefixes 4 --prefix-len 320"
    command = ["sim", "fleet", *options.split(), "--num-requests", "60", "--routes", str(path)]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    return path


class File:
    """An upload."""

    def __init__(self, text: str, name: str = "run.json", size: int | None = None) -> None:
        self.name, self.size, self._text = name, len(text) if size is None else size, text

    def getvalue(self) -> bytes:
        return self._text.encode()


def test_a_run_of_the_command_line_is_read_and_a_damaged_one_is_a_sentence(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[str] = []
    state: dict[str, Any] = {}
    monkeypatch.setattr(router_view.st, "session_state", state)
    monkeypatch.setattr(router_view.st, "error", errors.append)
    state["router file"] = File(recorded.read_text())
    found = router_view._opened()
    assert isinstance(found, RouteLog) and len(found.choices) == 60 and not errors
    assert found.choices == read_routes(recorded.read_text()).choices
    state["router file"] = File("[" * 200_000, "deep.json")
    assert router_view._opened() is None and "deep.json cannot be shown" in errors.pop()
    state["router file"] = File("{}", "large.json", router_view.MOST_BYTES + 1)
    assert router_view._opened() is None and "at most 50 MB" in errors.pop()


def test_pools_have_no_routes_to_record(tmp_path: Path) -> None:
    options = ["--prefill-replicas", "1", "--decode-replicas", "1", "--routes", str(tmp_path / "run.json")]
    done = CliRunner().invoke(cli, ["sim", "fleet", *options])
    assert done.exit_code != 0 and "--routes records one pool" in done.output + str(done.exception)
    (tmp_path / "file").write_text("")
    nowhere = ["sim", "fleet", "--num-requests", "5", "--routes", str(tmp_path / "file" / "run.json")]
    done = CliRunner().invoke(cli, nowhere)
    assert done.exit_code != 0 and "cannot write" in done.output + str(done.exception)
