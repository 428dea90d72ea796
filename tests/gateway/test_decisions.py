"""Settings, limits, the budgeter and the choice of a backend: functions of what they are given."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import ConfigError
from engine.gateway.backend import CHUNK, Backend, GatewayRequest
from engine.gateway.budgeter import estimated_tokens, trim
from engine.gateway.canary import share_of
from engine.gateway.config import BackendSettings, CanarySettings, GatewaySettings, read_settings
from engine.gateway.limits import DAY_S, CircuitBreaker, DailyQuota, RetryBudget, TokenBucket
from engine.gateway.route import Route
from engine.sim.router import GATEWAY_ROUTERS, bound


def backends(*versions: str) -> list[Backend]:
    return [
        Backend(
            index, BackendSettings(name=f"b{index}", url="http://x", version=version), CircuitBreaker(2, 10.0)
        )
        for index, version in enumerate(versions)
    ]


def request(number: int, text: str = "Hello", user: str = "") -> GatewayRequest:
    return GatewayRequest.of(
        f"r{number}", "", {"model": "shop", "prompt": text, "user": user or f"user-{number}"}
    )


# settings

GOOD = """policy: token-aware
backends:
  - {name: a, url: "http://127.0.0.1:8001"}
  - name: b
    url: "http://127.0.0.1:8002"
    version: candidate
canary: {version: candidate, share: 0.25}
tenants:
  - {name: search, api_key: $GATEWAY_TEST_KEY, requests_per_s: 5}
"""


def test_settings_are_read_with_keys_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(GOOD)
    with pytest.raises(ConfigError, match="GATEWAY_TEST_KEY is not set"):
        read_settings(file)
    monkeypatch.setenv("GATEWAY_TEST_KEY", "secret")
    settings = read_settings(file)
    assert settings.tenants[0].api_key == "secret" and settings.backends[1].version == "candidate"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "expected settings"),
        ("- 1", 1, "expected settings"),
        ("backends: [", 1, "not valid YAML"),
        ("backends: []", 1, "must be a list of at least 1 entry, got"),
        ("backends:\n  - {name: a, url: ftp}", 2, "url"),
        ("backends:\n  - name: a\n    url: http://a\n    wight: 3", 4, "wight"),
        ("policy: best\nbackends:\n  - {name: a, url: http://a}", 1, "policy"),
        ("backends:\n  - {name: a, url: http://a}\n  - {name: a, url: http://b}", 1, "names of their own"),
        ("backends:\n  - {name: a, url: http://a}\nshadow: {backend: z}", 1, "shadow names 'z'"),
        (
            "backends:\n  - {name: a, url: http://a}\ncanary: {version: v2, share: 0.1}",
            1,
            "canary names 'v2'",
        ),
        ("backends:\n  - {name: a, url: http://a}\ncanary:\n  version: stable\n  share: 3", 5, "share"),
        (
            "backends:\n  - {name: a, url: http://a}\ntenants:\n  - {name: t, api_key: k, burst: 0}",
            4,
            "burst",
        ),
    ],
)
def test_wrong_settings_are_told_with_file_and_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_settings(file)
    assert str(error.value).startswith(f"{file}:{line}: ") and says in str(error.value), error.value


# limits


@given(
    rate=st.floats(0.1, 50), burst=st.integers(1, 20), gaps=st.lists(st.floats(0, 3), min_size=1, max_size=60)
)
def test_a_bucket_never_lets_more_through_than_burst_and_rate(
    rate: float, burst: int, gaps: list[float]
) -> None:
    bucket, now, taken = TokenBucket(rate, burst), 0.0, 0
    for gap in gaps:
        now += gap
        wait = bucket.take(now)
        taken += wait == 0
        assert taken <= burst + rate * now + 1e-6
        assert wait >= 0
        if wait:
            assert bucket.take(now + wait + 1e-6) == 0
            now += wait + 1e-6
            taken += 1


def test_a_quota_begins_anew_each_day() -> None:
    quota = DailyQuota(100)
    quota.add(10.0, 130)
    assert quota.left(20.0) == 0 and quota.seconds_to_next(DAY_S - 5) == 5
    assert quota.left(DAY_S + 1) == 100


def test_a_breaker_opens_waits_tries_one_and_closes() -> None:
    breaker = CircuitBreaker(failures=2, open_s=10.0)
    for now in (0.0, 1.0):
        assert breaker.allows(now)
        breaker.begin(now)
        breaker.record(now, False)
    assert breaker.state == "open" and not breaker.allows(5.0)
    assert breaker.allows(11.5)
    breaker.begin(11.5)
    assert breaker.state == "half open" and not breaker.allows(11.6), "one request decides"
    breaker.record(12.0, False)
    assert breaker.state == "open" and breaker.num_opened == 2 and not breaker.allows(20.0)
    breaker.begin(22.5)
    breaker.record(23.0, True)
    assert breaker.state == "closed" and breaker.allows(23.0)


def test_retries_are_a_share_of_the_requests() -> None:
    budget = RetryBudget(0.1, least_per_s=0)
    for number in range(100):
        budget.request(number / 100)
    assert sum(budget.take(1.0) for _ in range(50)) == 10
    assert not any(RetryBudget(0.0, least_per_s=0).take(0.0) for _ in range(3))


def test_a_gateway_with_few_requests_may_retry_too() -> None:
    budget = RetryBudget(0.1, least_per_s=0.5)
    for now in range(4):
        budget.request(float(now))
    assert [budget.take(4.0) for _ in range(7)] == [True] * 5 + [False] * 2, "5 = 0.5 per second for 10 s"
    assert not budget.take(13.9) and budget.take(14.1), "the window moves on"


# budgeter

ROLES = st.sampled_from(["user", "assistant", "tool", "call"])


def message(role: str, length: int) -> dict[str, object]:
    if role == "call":
        return {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    return {"role": role, "content": "x" * length}


@given(st.lists(st.tuples(ROLES, st.integers(0, 400)), max_size=12), st.integers(16, 600))
def test_trimming_keeps_the_system_prompt_and_the_question_and_fits_if_it_can(
    turns: list[tuple[str, int]], budget: int
) -> None:
    first, last = message("system", 40), message("user", 40)
    messages = [first, *(message(*turn) for turn in turns), last]
    trimmed = trim(messages, budget)
    assert trimmed.messages[0] is first and trimmed.messages[-1] is last
    assert trimmed.num_after == estimated_tokens(trimmed.messages)
    least = estimated_tokens([first, last])
    assert trimmed.num_after <= max(budget, least)
    places = {id(each): place for place, each in enumerate(messages)}
    order = [places[id(message)] for message in trimmed.messages]
    assert order == sorted(order) and trimmed.num_dropped == len(messages) - len(order)
    if trimmed.num_before <= budget:
        assert trimmed.messages == messages and trimmed.num_prefix_tokens_lost == 0


def test_results_of_tools_go_first_and_with_their_call() -> None:
    messages = [
        message("system", 40), message("user", 40), message("call", 0), message("tool", 4000),
        message("assistant", 40), message("user", 40),
    ]  # fmt: skip
    trimmed = trim(messages, 200)
    assert [message["role"] for message in trimmed.messages] == ["system", "user", "assistant", "user"]
    assert trimmed.num_prefix_tokens_lost == estimated_tokens(messages[4])


# the choice


@pytest.mark.parametrize("policy", GATEWAY_ROUTERS)
def test_every_policy_chooses_among_those_that_can_answer_and_says_why(policy: str) -> None:
    route = Route(backends("v1", "v1", "v1"), policy, None)
    route.backends[0].is_healthy = False
    route.backends[1].breaker.state, route.backends[1].breaker._until = "open", 99.0
    chosen, decision = route.decide(request(1), now=0.0)
    assert chosen is route.backends[2]
    assert [each.excluded for each in decision.seen] == ["unhealthy", "breaker open", ""]
    assert "b2" in decision.sentence() and "b0 unhealthy" in decision.sentence()
    none, decision = route.decide(request(2), now=0.0, tried=[route.backends[2]])
    assert none is None and "b2: tried" in decision.sentence()


def test_prefix_affinity_sends_a_conversation_where_it_was() -> None:
    route = Route(backends("v1", "v1", "v1"), "prefix-affinity", None)
    homes: dict[str, Backend] = {}
    for turn in range(4):
        for name in ("ann", "bob", "eve"):
            text = f"{name} " * 300 + "and then " * 40 * turn
            asked = request(turn, text)
            chosen, _ = route.decide(asked, now=0.0)
            assert chosen is not None and homes.setdefault(name, chosen) is chosen
            chosen.begin(asked, 0.0)
    assert len({backend.name for backend in homes.values()}) == 3
    assert homes["ann"].hit(request(9, "ann " * 300)) == len("ann " * 300 + "shop\n\n") // CHUNK


CARDS = [{"id": "shop", "parent": None}] + [{"id": f"ad{n}", "parent": "shop"} for n in range(6)]


def lora_metric(*series: tuple[str, str, int]) -> str:
    """vLLM's exposition: running and waiting adapters, and the time of each series."""
    return "# TYPE vllm:lora_requests_info gauge\n" + "".join(
        f'vllm:lora_requests_info{{max_lora="2",waiting_lora_adapters="{waiting}",running_lora_adapters="{running}"}}'
        f" {when}.0\n"
        for running, waiting, when in series
    )


def ask_for(number: int, model: str) -> GatewayRequest:
    return GatewayRequest.of(f"r{number}", "", {"model": model, "prompt": "Hello"})


def test_an_adapter_is_asked_where_it_is_loaded_then_where_a_slot_is_free() -> None:
    route = Route(backends("v1", "v1", "v1"), "lora-affinity", None)
    first, second, third = route.backends
    first.adapters.tell(CARDS, lora_metric(("ad3", "ad4", 7), ("ad0", "ad1", 9)))  # the newest series counts
    second.adapters.tell(CARDS, lora_metric(("ad2", "", 9)))
    third.adapters.tell([card for card in CARDS if card["id"] != "ad5"], lora_metric(("", "", 9)))
    assert [route.decide(ask_for(n, f"ad{n}"), 0.0)[0] for n in range(3)] == [first, first, second]
    chosen, decision = route.decide(ask_for(3, "ad5"), 0.0)
    assert chosen is second and "a slot is free" in decision.reason
    assert [each.adapter for each in decision.seen] == ["", "a slot free", "adapter not listed"]
    first.load = second.load = 1
    chosen, decision = route.decide(ask_for(4, "shop"), 0.0)
    assert chosen is third and "no adapter" in decision.reason
    second.forget()
    assert second.adapter(ask_for(5, "ad2")) == 0, "nothing is known of a server that was away"


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=120))
def test_a_hot_adapter_is_never_above_the_bound_and_slots_are_its_backends(
    events: list[tuple[int, bool]],
) -> None:
    route = Route(backends("v1", "v1", "v1"), "lora-affinity", None)
    running: list[tuple[Backend, GatewayRequest]] = []
    for backend in route.backends:
        backend.adapters.tell(CARDS, lora_metric(("", "", 1)))
    for number, (adapter, ends) in enumerate(events):
        asked = ask_for(number, f"ad{adapter // 3}")  # two adapters
        had = [
            each for each in route.backends if each.adapter(asked) == 2 and each.load < bound(route.backends)
        ]
        chosen, decision = route.decide(asked, 0.0)
        assert chosen is not None and chosen.load < bound(route.backends)
        assert chosen in had if had else "is loaded there" not in decision.reason
        chosen.begin(asked, 0.0)
        assert chosen.adapter(asked) == 2
        running.append((chosen, asked))
        if ends:
            backend, done = running.pop(0)
            backend.end(done, 0.0, True)


def test_the_least_recently_used_adapter_leaves_its_slot() -> None:
    [backend] = backends("v1")
    backend.adapters.tell(CARDS, lora_metric(("", "", 1)))
    for number in (0, 1, 0, 2):
        backend.begin(ask_for(number, f"ad{number}"), 0.0)
    assert [backend.adapter(ask_for(9, f"ad{n}")) for n in range(3)] == [2, 0, 2]
    backend.adapters.tell(CARDS[:1], "")
    assert backend.adapter(ask_for(9, "ad0")) == -1, "unloaded"


def test_a_canary_gets_its_share_of_the_users_and_each_user_stays() -> None:
    route = Route(backends("v1", "v2", "v1"), "least-loaded", CanarySettings(version="v2", share=0.1))
    went: Counter[str] = Counter()
    for number in range(4000):
        chosen, decision = route.decide(request(number), now=0.0)
        assert chosen is not None and "canary" in decision.reason
        went[chosen.settings.version] += 1
        assert (share_of(f"user-{number}") < 0.1) == (chosen.settings.version == "v2")
    assert abs(went["v2"] / 4000 - 0.1) < 0.02
    route.canary = CanarySettings(version="v2", share=0.0)
    assert all(route.decide(request(n), now=0.0)[0].settings.version == "v1" for n in range(300))


def test_a_version_without_a_backend_falls_back_to_the_others() -> None:
    route = Route(backends("v1", "v2"), "least-loaded", CanarySettings(version="v2", share=1.0))
    route.backends[1].is_healthy = False
    chosen, decision = route.decide(request(1), now=0.0)
    assert chosen is route.backends[0] and "no backend left" in decision.reason


def test_defaults_need_backends_only() -> None:
    settings = GatewaySettings(backends=[BackendSettings(name="a", url="http://a")])
    assert settings.policy == "least-loaded" and settings.tenants == []
