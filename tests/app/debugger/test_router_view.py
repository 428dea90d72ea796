"""The view Router of the page Capacity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from app.cli.main import app as cli
from app.debugger.capacity import router_view
from engine.config import ConfigError
from engine.gateway.backend import Backend, GatewayRequest
from engine.gateway.config import BackendSettings, Policy
from engine.gateway.limits import CircuitBreaker
from engine.gateway.route import Route
from engine.gateway.route_map import routes_of_decisions
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
        assert len(data["choices"]) == router_view.NUM_REQUESTS and len(data["names"]) == 4
        assert sum(int(facts[0].split()[0]) for facts in data["facts"]) == router_view.NUM_REQUESTS
        kinds[router] = {choice[5] for choice in data["choices"]}
        levels = [data[name][lane] for name in ("running", "waiting", "kv") for lane in range(4)]
        assert {len(level) for level in levels} == {len(data["times"])}
    app.toggle(key="router all").set_value(True).run()
    assert not app.exception and app.dataframe[0].value["router"].tolist() == list(ROUTERS)
    hits = dict(zip(ROUTERS, app.dataframe[0].value["cache hits, %"], strict=True))
    assert hits["prefix-affinity"] > hits["round-robin"]
    assert kinds["prefix-affinity"] == {"prefix", "load"} and kinds["round-robin"] == {"turn"}
    assert kinds["consistent-hash"] == {"ring"} and kinds["least-loaded"] == {"load"}


def test_requests_with_one_prefix_have_one_colour(open_page: Opener) -> None:
    app = open_page("capacity", **LINK)
    app.session_state["router colour"] = "prefix"
    app.run()
    colours = {(choice[2], choice[8]) for choice in drawn(app)["choices"]}
    assert len(colours) == 12 and len({colour for _, colour in colours}) == 7


def test_a_link_opens_its_router_and_a_damaged_one_the_default(open_page: Opener) -> None:
    app = open_page("capacity", **LINK, router="round-robin", lanes=2)
    assert not app.exception and len(drawn(app)["names"]) == 2
    assert app.query_params["router"] == "round-robin" and app.query_params["lanes"] == "2"
    damaged = open_page("capacity", **LINK, router="best", lanes="-3")
    assert not damaged.exception and damaged.query_params["router"] == "prefix-affinity"


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


def decided(policy: str, count: int) -> str:
    """Decisions of a gateway with three backends, as JSON."""
    names = ("a", "b", "c")
    backends = [
        Backend(index, BackendSettings(name=name, url="http://x"), CircuitBreaker(2, 10.0))
        for index, name in enumerate(names)
    ]
    route, decisions = Route(backends, policy, None), []
    for number in range(count):
        text = f"system prompt {number % 4} " * 40
        asked = GatewayRequest.of(f"r{number}", "", {"model": "shop", "prompt": text})
        backend, decision = route.decide(asked, 100 + number / 10)
        assert backend is not None
        backend.begin(asked, 100 + number / 10)
        decisions.append({**decision.as_json(), "sentence": decision.sentence()})
    lost = {**decisions[0], "request_id": "lost", "backend": None, "reason": "no backend can answer"}
    return json.dumps([*reversed(decisions), lost])


@pytest.mark.parametrize("policy", get_args(Policy))
def test_the_decisions_of_a_gateway_are_read_for_every_policy(policy: str) -> None:
    text = decided(policy, 24)
    log, num_without = routes_of_decisions(text)
    assert num_without == 1 and len(log.choices) == 24 and sorted(log.names) == ["a", "b", "c"]
    by_id = {record["request_id"]: record for record in json.loads(text)}
    assert [choice.request for choice in log.choices] == [f"r{number}" for number in range(24)]
    for choice, sample in zip(log.choices, log.samples, strict=True):
        decision = by_id[str(choice.request)]
        assert log.names[choice.replica] == decision["backend"] and choice.reason == decision["reason"]
        loads = {each["name"]: each["load"] for each in decision["seen"]}
        assert sample.running == [loads[name] for name in log.names] and not sample.kv
        assert choice.time == pytest.approx(int(str(choice.request)[1:]) / 10)
    expected = {"round-robin": "turn", "consistent-hash": "ring", "prefix-affinity": "prefix"}.get(policy)
    assert expected is None or expected in {choice.kind for choice in log.choices}


def test_a_gateways_file_is_drawn_by_its_names_and_another_list_is_a_sentence(
    open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_view, "_opened", lambda: router_view._read(decided("least-loaded", 6)))
    app = open_page("capacity", view="router")
    assert (
        not app.exception
        and "Not drawn: 1 request without a backend" in said(app)
        and "remove it below" in said(app)
    )
    data = drawn(app)
    assert sorted(data["names"]) == ["a", "b", "c"] and data["kv"] is None and len(data["choices"]) == 6
    for text in ("[]", "[1]", '[{"when": 1}]', "[" * 200_000):
        with pytest.raises(ConfigError):
            router_view._read(text)


def test_pools_have_no_routes_to_record(tmp_path: Path) -> None:
    options = ["--prefill-replicas", "1", "--decode-replicas", "1", "--routes", str(tmp_path / "run.json")]
    done = CliRunner().invoke(cli, ["sim", "fleet", *options])
    assert done.exit_code != 0 and "--routes records one pool" in done.output + str(done.exception)
    (tmp_path / "file").write_text("")
    nowhere = ["sim", "fleet", "--num-requests", "5", "--routes", str(tmp_path / "file" / "run.json")]
    done = CliRunner().invoke(cli, nowhere)
    assert done.exit_code != 0 and "cannot write" in done.output + str(done.exception)
