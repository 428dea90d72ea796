"""The panel "Quiz me on this step": an answer is committed, the run is stepped, and what it did stands beside."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from streamlit.testing.v1 import AppTest

from app.debugger.question_panel import Quiz
from app.debugger.step_questions import Question, in_words, questions
from engine.trace.reader import TraceReader
from engine.trace.sentence import sentence
from tests.trace.trace_workloads import random_run

if TYPE_CHECKING:
    from playwright.sync_api import Page

SEED = 44


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> TraceReader:
    """A run with preemptions, and questions about them."""
    return TraceReader(random_run(tmp_path_factory.mktemp("quiz") / "run.itrace", SEED).path)


def page() -> None:
    import streamlit as st

    from app.debugger import session
    from app.debugger.question_panel import show_panel

    run = session.current_run()
    assert run is not None
    show_panel(run, session.selection().step)
    st.text(f"at step {session.selection().step}")


def opened(reader: TraceReader, step: int) -> AppTest:
    app = AppTest.from_function(page, default_timeout=20)
    app.query_params["run"] = f"file:{reader.path}"
    app.query_params["step"] = str(step)
    return app.run()


def asked(app: AppTest) -> Question:
    quiz: Quiz = app.session_state["step quiz"]
    assert quiz.question is not None
    return quiz.question


def start(app: AppTest, kind: str) -> Question:
    """Ask until a question of the kind comes."""
    app.button(key="step-quiz-start").click().run()
    for _ in range(80):
        if asked(app).kind == kind:
            return asked(app)
        press(app, "Another question")
    raise AssertionError(f"no question of kind {kind}")


def commit(app: AppTest) -> None:
    press(app, "Commit")


def press(app: AppTest, label: str) -> None:
    (button,) = [each for each in app.button if each.label.startswith(label)]
    button.click().run()
    assert not app.exception


def step_with(reader: TraceReader, *kinds: str) -> int:
    for step in range(reader.num_steps):
        if set(kinds) <= {question.kind for question in questions(reader, step, 1)}:
            return step
    raise AssertionError(kinds)


def first_asked(reader: TraceReader, step: int) -> str | None:
    """The kind of the first question that a new tab asks about a step."""
    found = questions(reader, step, seed=1)
    return found[1 % len(found)].kind if found else None


def text_of(app: AppTest) -> str:
    """Everything that is shown, without the backslashes that keep names from being Markdown."""
    shown = [
        each.value for kind in ("markdown", "caption", "success", "error", "info") for each in app.get(kind)
    ]
    return "\n".join(shown).replace("\\", "")


@pytest.mark.parametrize("offset", [0, 1])
def test_a_committed_number_is_graded_by_the_step_that_follows(reader: TraceReader, offset: int) -> None:
    app = opened(reader, step_with(reader, "free_after"))
    question = start(app, "free_after")
    assert isinstance(question.answer, int)
    app.number_input[0].set_value(question.answer + offset)
    commit(app)
    assert f"at step {question.step + 1}" in [each.value for each in app.text]
    told = text_of(app)
    assert f"our answer: **{question.answer + offset}**; the run: **{question.answer}**" in told.replace(
        "Y", "y"
    )
    assert question.explanation in told and sentence(reader, question.revealed) in told
    assert (len(app.success), len(app.error)) == ((1, 0) if offset == 0 else (0, 1))
    assert f"{1 - offset} of 1 right in this tab" in told
    app.button(key="step-quiz-back").click().run()
    assert f"at step {question.step}" in [each.value for each in app.text]
    assert f"{1 - offset} of 1 right in this tab" in text_of(app), "going back asks nothing again"


def test_choices_and_sets_are_committed_too(reader: TraceReader) -> None:
    app = opened(reader, step_with(reader, "victim"))
    question = start(app, "victim")
    commit(app)
    assert len(app.warning) == 1 and not app.success, "no answer is no answer"
    app.radio[0].set_value(question.answer)
    commit(app)
    assert len(app.success) == 1

    app = opened(reader, step_with(reader, "admitted"))
    question = start(app, "admitted")
    assert isinstance(question.answer, frozenset)
    for box, choice in zip(app.checkbox, question.choices, strict=True):
        if choice in question.answer:
            box.check()
    commit(app)
    assert len(app.success) == 1
    assert f"the run: **{in_words(question.answer)}**" in text_of(app)


def test_the_panel_does_not_give_the_answer_away(reader: TraceReader) -> None:
    """When the next block comes is the answer: the button must not say to which step it leads."""
    step = step_with(reader, "next_block")
    app = opened(reader, step)
    question = start(app, "next_block")
    shown = text_of(app) + " ".join(button.label for button in app.button)
    assert str(question.revealed) not in shown.replace(question.prompt, "")


def test_the_answer_tells_nothing_of_what_comes_after_its_step(reader: TraceReader) -> None:
    looks_ahead = [
        step
        for step in range(1, reader.num_steps)
        if sentence(reader, step) != sentence(reader, step, ahead=False)
        and any(question.revealed == step for question in questions(reader, step - 1, 1))
    ]
    assert looks_ahead
    for step in looks_ahead[:4]:
        app = opened(reader, step - 1)
        app.button(key="step-quiz-start").click().run()
        while asked(app).revealed != step:
            press(app, "Another question")
        question = asked(app)
        if question.form == "number":
            app.number_input[0].set_value(1)
        elif question.form == "choice":
            app.radio[0].set_value(question.choices[0])
        commit(app)
        assert sentence(reader, step, ahead=False) in text_of(app)
        assert sentence(reader, step) not in text_of(app)


def test_where_there_is_nothing_to_ask_the_panel_says_so_and_offers_a_better_step(
    reader: TraceReader,
) -> None:
    quiet = next(
        step
        for step in range(reader.num_steps)
        if not any(questions(reader, step, seed) for seed in range(4)) and reader.next_event("hit", step + 2)
    )
    app = opened(reader, quiet)
    app.button(key="step-quiz-start").click().run()
    assert "No question for this step" in text_of(app)
    app.button(key="step-quiz-elsewhere").click().run()
    assert f"at step {quiet}" not in [each.value for each in app.text] and not app.exception


@pytest.mark.slow
def test_on_the_page_step_committing_steps_the_map_and_shows_the_verdict(
    reader: TraceReader, app_url: str, tab: Page
) -> None:
    from playwright.sync_api import expect

    expect.set_options(timeout=20_000)
    step = next(step for step in range(reader.num_steps) if first_asked(reader, step) == "free_after")
    tab.goto(f"{app_url}/step?run=file:{reader.path}&step={step}")
    view = tab.locator(".step-view")
    expect(view).to_have_attribute("data-step", str(step))
    tab.get_by_text("Quiz me on this step").click()
    tab.get_by_role("button", name=f"Ask me about step {step}").click()
    expect(tab.get_by_text(f"are free after step {step + 1}?")).to_be_visible()
    expect(view).to_have_attribute("data-hidden", str(step + 1))
    expect(view.locator(".sentence")).to_have_text(sentence(reader, step, ahead=False))
    box, panel = view.bounding_box(), tab.locator(".st-key-step_quiz_open").bounding_box()
    assert box and panel and panel["x"] >= box["x"] + box["width"], "the question stands beside the map"
    answer = reader.step(step + 1).num_free_blocks
    tab.get_by_role("spinbutton", name="Your answer").fill(str(answer))
    tab.keyboard.press("Enter")
    expect(tab.get_by_text("✓ Correct.")).to_be_visible()
    expect(view).to_have_attribute("data-step", str(step + 1))
    expect(view).to_have_attribute("data-hidden", str(step + 2))  # the next question would be about this step
    expect(view.locator(".sentence")).to_have_text(sentence(reader, step + 1, ahead=False))
    expect(tab).to_have_url(re.compile(rf"step={step + 1}\b"))
    tab.get_by_role("button", name=f"Back to step {step}").click()
    expect(view).to_have_attribute("data-step", str(step))
    expect(view).to_have_attribute("data-hidden", "")
    expect(tab.get_by_text("1 of 1 right in this tab")).to_be_visible()


def test_a_name_that_looks_like_markdown_stays_a_name() -> None:
    from app.debugger.page_frame import plain

    assert plain("r_1*2:sob:") == r"r\_1\*2\:sob\:"


def test_an_answer_counts_once() -> None:
    quiz = Quiz()
    quiz.ask("run", Question("?", "number", (), 3, ".", 1, 2))
    quiz.commit(3)
    quiz.commit(4)
    assert (quiz.num_right, quiz.num_answered, quiz.score) == (1, 1, "1 of 1 right in this tab")
