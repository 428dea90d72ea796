"""Tours: every place exists, every figure is computed, and what captions claim is so."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Page
from playwright.sync_api import TimeoutError as PlaywrightTimeout
from streamlit.testing.v1 import AppTest

from app.debugger.runs import open_run
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
        ("preemption", 0, "free == 0"),
        ("preemption", 1, 'victim == "eve" and cost.blocks_shared > 0'),
        ("preemption", 3, "cost.tokens_recomputed == cost.tokens_lost"),
        ("preemption", 4, "0 < cost.tokens_recomputed < block_size"),
        ("preemption", 5, 'victim == "ben"'),
        ("ttft", 1, "running == max_num_seqs and waiting > 0 and free > 0"),
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
    tab.get_by_role("button", name="Open on Step").click()
    tab.locator("[data-step='33']").first.wait_for()


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
