"""Tours: every place exists, every figure is computed, and what captions claim is so."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Page
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from streamlit.testing.v1 import AppTest

from app.debugger.runs import Run, open_run
from app.debugger.tours import Stop, caption, facts, load_tours, step_of
from quizzes.expressions import ExpressionError
from quizzes.topics import TOPICS

SCRIPT = Path(__file__).resolve().parents[3] / "app" / "debugger" / "entry" / "workbench.py"
STOPS = [(tour.id, place) for tour in load_tours().values() for place in range(len(tour.stops))]


def stop_of(tour: str, place: int) -> Stop:
    return load_tours()[tour].stops[place]


def test_there_are_five_tours_of_four_to_six_stops() -> None:
    assert len(load_tours()) >= 5
    for tour in load_tours().values():
        assert 4 <= len(tour.stops) <= 6
        assert set(tour.topics) <= set(TOPICS)


@pytest.mark.parametrize(("tour", "place"), STOPS)
def test_every_stop_is_a_place_of_its_run_and_has_all_its_figures(tour: str, place: int) -> None:
    stop = stop_of(tour, place)
    run = open_run(stop.run)
    words = caption(stop, run)
    assert "{" not in words and "None" not in words and "nan" not in words
    reader = run.reader(step_of(stop, run))
    if stop.request is not None:
        assert reader.find(stop.request)


def test_figures_of_a_state_are_those_of_the_trace() -> None:
    run = open_run("memory-pressure")
    for step in range(run.index.num_steps):
        found, state = facts(run, step), run.reader(step).state_at(step)
        refs = list(state.blocks.ref)[1:]
        assert found["free"] == refs.count(0) and found["used"] == len(refs) - refs.count(0)
        assert found["shared"] == sum(ref > 1 for ref in refs)
        assert found["running"] == len(state.running) and found["waiting"] == len(state.waiting)


@pytest.mark.parametrize(
    ("tour", "place", "claim"),
    [
        ("paging", 1, 'computed["ana"] == prompt["ana"] and known["ana"] == computed["ana"] + 1'),
        ("paging", 2, 'num_tokens == 1 and 0 < blocks["ana"] * block_size - computed["ana"] < block_size'),
        ("paging", 4, "free == num_blocks and cached > 0"),
        ("batching", 0, "running == 3 and num_tokens == 3"),
        ("batching", 1, 'rows["catalogue"] == budget - 3'),
        ("batching", 3, "running == max_num_seqs and free > 0"),
        ("batching", 4, 'running == max_num_seqs and "finn" in rows'),
        ("prefix-cache", 0, 'hit["agent-2-turn-1"] > 0 and shared > 0'),
        ("prefix-cache", 2, 'hit["shop-11-visit-4"] > 0'),
        ("prefix-cache", 3, "counters.num_evictions > 0"),
        ("prefix-cache", 4, 'hit["shop-12-visit-7"] == 0'),
        ("prefix-cache", 1, "sum([blocks[name] for name in blocks]) > used"),
        ("preemption", 0, "free == 0 and waiting == 0"),
        ("preemption", 2, "0 < tokens_found < tokens_known"),
        ("preemption", 1, 'victim == "eve" and cost.blocks_shared > 0'),
        ("preemption", 3, "cost.tokens_recomputed == cost.tokens_lost"),
        ("preemption", 4, "0 < cost.tokens_recomputed < block_size"),
        ("preemption", 5, 'victim == "ben"'),
        ("ttft", 0, "num_tokens == budget"),
        ("ttft", 1, "running == max_num_seqs and waiting > 0 and free > 0 and num_tokens < budget"),
        ("ttft", 2, 'prompt["dan"] + num_tokens < budget and running < max_num_seqs'),
        ("ttft", 4, 'hit["agent-1-turn-2"] > 0 and computed["agent-1-turn-2"] == prompt["agent-1-turn-2"]'),
    ],
)
def test_what_a_caption_says_without_figures_is_so(tour: str, place: int, claim: str) -> None:
    from quizzes.expressions import evaluate

    stop = stop_of(tour, place)
    run = open_run(stop.run)
    assert evaluate(claim, facts(run, step_of(stop, run))) is True


@pytest.mark.parametrize("place", range(4))
def test_who_waits_on_the_tour_about_ttft_has_no_first_token(place: int) -> None:
    stop = stop_of("ttft", place)
    run = open_run(stop.run)
    found = facts(run, step_of(stop, run))
    assert found["why"] and all(found["known"][name] == found["prompt"][name] for name in found["why"])


def at_stop(tour: str, place: int) -> tuple[Run, int]:
    stop = stop_of(tour, place)
    run = open_run(stop.run)
    return run, step_of(stop, run)


def test_an_adapter_waits_for_the_only_slot_while_a_later_request_for_the_base_model_runs() -> None:
    run, step = at_stop("ttft", 3)
    reader = run.reader(step)
    cleo, ben, eve = (reader.find(name) for name in ("cleo-support", "ben-recommend", "eve-base"))
    assert ben.record["lora"] and cleo.record["lora"] and ben.record["lora"] != cleo.record["lora"]
    assert not eve.record["lora"] and cleo.added < eve.added
    state = reader.state_at(step)
    assert {"ben-recommend", "eve-base"} <= set(state.running) and "cleo-support" in state.waiting
    assert reader.header["config"]["scheduler"]["max_loras"] == 1
    reasons = {each.request_id: each.reason for each in reader.step(step).not_scheduled}
    assert reasons["cleo-support"] == "no_lora_slot"


@pytest.mark.parametrize("place", [0, 1, 2])
def test_requests_on_the_tour_about_ttft_wait_for_the_reason_of_the_stop(place: int) -> None:
    run, step = at_stop("ttft", place)
    reasons = {each.reason for each in run.reader(step).step(step).not_scheduled}
    assert reasons == {stop_of("ttft", place).at.reason}


def test_victims_are_the_least_important_requests() -> None:
    run, step = at_stop("preemption", 1)
    reader = run.reader(step)
    assert max(reader.state_at(step - 1).running, key=lambda name: reader.find(name).added) == "eve"
    run, step = at_stop("preemption", 5)
    reader = run.reader(step)
    arrived = sorted(reader.requests, key=lambda request: request.added)
    assert [each.request_id for each in arrived][1] == "ben" and len(arrived) == 4
    running = [reader.find(name) for name in reader.state_at(step - 1).running]
    assert max(running, key=lambda request: request.record["priority"]).request_id == "ben"


def test_the_order_of_events_that_captions_tell_is_that_of_the_run() -> None:
    run, step = at_stop("batching", 1)
    rows = [row.request_id for row in run.reader(step).step(step).rows]
    assert rows[-1] == "catalogue" and len(rows) == 4  # the decoding requests come first
    run, step = at_stop("batching", 4)
    assert run.reader(step - 1).step(step - 1).finished
    run, step = at_stop("prefix-cache", 2)
    first, again = (run.reader(step).find(f"shop-11-visit-{visit}") for visit in (1, 4))
    assert first.ended is not None and first.ended < again.added <= step
    run, step = at_stop("prefix-cache", 3)
    before = run.reader(step).state_at(step - 1).blocks
    empty = [block for block in range(1, len(before.ref)) if not before.ref[block] and not before.hash[block]]
    found = facts(run, step)
    assert len(empty) + found["counters"]["num_evictions"] == found["blocks"]["shop-14-visit-5"]
    run, step = at_stop("prefix-cache", 4)
    arrived = [
        request.request_id for request in sorted(run.reader(step).requests, key=lambda request: request.added)
    ]
    assert arrived[0] == "shop-11-visit-1" and arrived.index("shop-12-visit-2") < arrived.index(
        "shop-11-visit-4"
    )
    run, step = at_stop("ttft", 4)
    row = next(row for row in run.reader(step).step(step).rows if row.request_id == "agent-1-turn-2")
    assert len(row.tokens) == 1  # the first token


def test_the_victim_of_both_ways_is_the_same_in_the_same_step() -> None:
    recomputed, swapped = stop_of("preemption", 3), stop_of("preemption", 4)
    runs = [open_run(stop.run) for stop in (recomputed, swapped)]
    steps = [step_of(stop, run) for stop, run in zip((recomputed, swapped), runs, strict=True)]
    victims = [facts(run, step)["victim"] for run, step in zip(runs, steps, strict=True)]
    assert steps[0] == steps[1] and victims[0] == victims[1]


def test_a_place_that_is_not_there_and_a_figure_that_does_not_exist_are_named() -> None:
    run = open_run("first-steps")
    stop = stop_of("paging", 0)
    with pytest.raises(LookupError, match="first-steps has no such stop"):
        step_of(Stop.model_validate({**stop.model_dump(), "after": 10_000}), run)
    with pytest.raises(ExpressionError, match="nonsense"):
        caption(Stop.model_validate({**stop.model_dump(), "caption": "{nonsense}"}), run)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    monkeypatch.setenv("PREP_APP_PAGE", "learn")
    return AppTest.from_file(str(SCRIPT), default_timeout=60)


def test_a_tour_goes_on_and_back(page: AppTest) -> None:
    page.run()
    first = [text.value for text in page.markdown]
    for label in ("Next ▶", "◀ Back"):
        next(button for button in page.button if button.label == label).click().run()
        assert not page.exception
    assert [text.value for text in page.markdown] == first


def test_another_tour_starts_at_its_first_stop(page: AppTest) -> None:
    page.query_params["tour"] = "preemption"
    page.query_params["stop"] = "4"
    page.run()
    assert not page.exception
    assert any("**5 of 6**" in text.value for text in page.markdown)


def test_a_damaged_link_still_opens_a_tour(page: AppTest) -> None:
    page.query_params["tour"] = "no such"
    page.query_params["stop"] = "99"
    page.run()
    assert not page.exception
    assert any("of 5**" in text.value for text in page.markdown)


@pytest.mark.slow
def test_a_tour_by_keyboard(app_url: str, tab: Page) -> None:
    at_rest = tab.locator("[data-test-script-state=notRunning]")
    tab.goto(f"{app_url}/learn?tour=preemption")
    tab.get_by_text("1 of 6").wait_for()
    for key, before, after in (("ArrowRight", 1, 2), ("ArrowLeft", 2, 1)):
        for _ in range(10):  # a key is lost while its button is being drawn
            at_rest.wait_for()
            if tab.get_by_text(f"{before} of 6").is_visible():
                tab.keyboard.press(key)
            with suppress(PlaywrightTimeout):
                tab.get_by_text(f"{after} of 6").wait_for(timeout=6000)
                break
        tab.get_by_text(f"{after} of 6").wait_for()
    tab.locator(".tour[data-over][data-step='33']").wait_for()  # the animation ends at the stop
    tab.emulate_media(reduced_motion="reduce")
    tab.reload()
    tab.locator(".tour[data-over][data-step='33']").wait_for()
    assert tab.locator(".tour .play").inner_text() == "▶ play"
    tab.get_by_role("button", name="Open on Step").click()
    tab.locator(".step-view[data-step='33']").wait_for()


@pytest.mark.slow
def test_learning_fits_a_phone(app_url: str, tab: Page) -> None:
    tab.set_viewport_size({"width": 375, "height": 800})
    tab.goto(f"{app_url}/learn?tour=preemption")
    tab.get_by_text("1 of 6").wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 375


def test_a_tour_leaves_what_the_tab_looks_at_as_it_was(page: AppTest) -> None:
    page.query_params["run"], page.query_params["step"] = "swap", "31"
    page.run()
    page.button(key="step-quiz-start").click().run()
    assert not page.exception
    seen = page.session_state["selection"]
    assert (seen.run, seen.step) == ("swap", 31)
