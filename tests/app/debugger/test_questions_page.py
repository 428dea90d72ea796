"""The page Questions without a browser: answers go through its fields, and the state file is that of `prep quiz`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from streamlit.testing.v1 import AppTest
from typer.testing import CliRunner

from app.cli.main import app as cli
from app.debugger.questions import held as questions
from app.debugger.questions.choosing import IN_A_TERMINAL
from app.debugger.questions.held import Held
from prep_common.paths import state_path
from quizzes.experiments.runner import Runner
from quizzes.instance import draw
from quizzes.learning.progress import progress
from quizzes.learning.review import cards
from quizzes.learning.selection import due
from quizzes.question_bank import load_bank
from quizzes.state import State
from tests.app.debugger.pages import Opener
from tests.app.debugger.pages import said as said_without_verdict
from tests.waiting import LIMIT_S, wait_until

QUESTION = "batching.static_vs_continuous"


@pytest.fixture(autouse=True)
def release() -> Iterator[None]:
    yield
    for each in list(questions.HELD.held.values()):
        questions.release(each)


def said(app: AppTest) -> str:
    return "\n".join([said_without_verdict(app), *(str(each.value) for each in app.success)])


def opened(open_page: Opener, question: str = QUESTION, seed: int = 7) -> tuple[AppTest, Held]:
    app = open_page("questions", question=question, seed=seed)
    return app, held_of(app)


def held_of(app: AppTest) -> Held:
    return questions.HELD.held[app.session_state["question"].session]


def right_replies(question: str, seed: int) -> dict[str, str]:
    """The right values, from a run beside the page."""
    instance = draw(load_bank().question(question), seed)
    run = instance.question.experiment
    result = None
    if run is not None:
        with Runner() as runner:
            result = runner.run(run.run, instance.run_args()).result
    return {name: str(value) for name, value in instance.expected(result).items()}


def commit(app: AppTest, replies: dict[str, str], sure: int = 50) -> AppTest:
    """Fill the fields, commit, and wait for the run."""
    key = f"question {held_of(app).session.id}"
    for name, text in replies.items():
        app.text_input(key=f"{key} {name}").set_value(text)
    app.slider(key=f"{key} sure").set_value(sure)
    next(button for button in app.button if button.label.startswith("Commit")).click().run()
    return ended(app)


def ended(app: AppTest) -> AppTest:
    def has_result() -> bool:
        if held_of(app).job is None:
            return True
        held_of(app).job.wait(LIMIT_S)
        app.run()
        return False

    wait_until(has_result)
    assert not app.exception
    return app


def attempts() -> list:
    with State.open() as state:
        return state.attempts()


def test_a_right_answer_is_run_graded_and_explained(open_page: Opener) -> None:
    app, held = opened(open_page)
    replies = right_replies(QUESTION, 7)
    commit(app, replies, sure=90)
    text = said(app)
    assert "✓ Right · 2 of 2 points" in text and held.graded is not None and held.graded.all_right
    assert all(f"{value} steps" in text for value in replies.values())
    assert "Static batching waits for each group's longest member" in text  # the explanation
    assert held.result is not None and f"<td>{held.result['static_steps']} " in text  # the figures
    [attempt] = attempts()
    assert (attempt.question_id, attempt.seed, attempt.correct, attempt.confidence) == (QUESTION, 7, True, 90)


def test_the_answer_is_in_the_file_before_the_experiment_runs(
    open_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = opened(open_page)
    seen = []
    run = Runner.run

    def looked(runner: Runner, *args: object, **more: object) -> object:
        with State.open() as state:
            seen.append([prediction.answer for prediction in state.predictions()])
        return run(runner, *args, **more)

    monkeypatch.setattr(Runner, "run", looked)
    commit(app, {"static": "100", "continuous": "7*9"})
    assert seen == [[{"static": "100", "continuous": "7*9"}]]


def test_a_bar_of_the_standing_is_as_long_as_the_figure_in_its_words(open_page: Opener) -> None:
    """Accuracy and readiness differ after one answer: the words name the one that is drawn."""
    app, _ = opened(open_page)
    commit(app, right_replies(QUESTION, 7), sure=95)
    with State.open() as state:
        [topic] = [each for each in progress(load_bank(), state).topics if each.seen]
    assert topic.accuracy == 1.0 and topic.readiness < 60
    for page in (open_page("questions"), open_page("learn", tour="batching")):
        [bar] = [each.proto for each in page.get("progress")]
        assert bar.value == round(topic.readiness)
        assert f"readiness {bar.value} of 100" in bar.text and "Readiness: per topic" in said(page)


def test_page_and_command_line_keep_the_same_attempt_and_card(
    open_page: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = opened(open_page)
    commit(app, {"static": "60", "continuous": "266"}, sure=95)
    [here] = attempts()
    with State.open() as state:
        card = cards(state)[QUESTION]
        assert [each.why for each in due(load_bank(), state)] == ["surprise"]
    shown = CliRunner().invoke(cli, ["review", "--json", "--script", "/dev/null"])
    assert json.loads(shown.stdout)["kind"] == "review"

    monkeypatch.setenv("PREP_HOME", str(tmp_path / "terminal"))
    script = tmp_path / "answers.txt"
    script.write_text("60\n266\n95\n")
    args = ["quiz", "--question", QUESTION, "--seed", "7", "--script", str(script), "--json"]
    assert CliRunner().invoke(cli, args).exit_code == 0
    [there] = attempts()
    graded = ("answer", "points", "points_max", "correct", "grader", "scored")
    for name in (*graded, "confidence", "rating", "mistake_id", "seed", "revision"):
        assert getattr(here, name) == getattr(there, name), name
    with State.open() as state:
        same = cards(state)[QUESTION]
        assert state.unfinished("quiz") is None
    assert (card.surprise, card.last_rating, card.last_fraction) == (
        same.surprise,
        same.last_rating,
        same.last_fraction,
    )


def test_an_unreadable_number_is_told_beside_its_field_and_nothing_is_committed(open_page: Opener) -> None:
    app, held = opened(open_page)
    key = f"question {held.session.id}"
    app.text_input(key=f"{key} static").set_value("many")
    app.text_input(key=f"{key} continuous").set_value("62")
    next(button for button in app.button if button.label == "Commit and run").click().run()
    assert any("many" in error.value for error in app.error)
    assert app.text_input(key=f"{key} continuous").value == "62" and not held.is_committed
    assert attempts() == []


def test_a_reload_keeps_hints_and_then_the_verdict(open_page: Opener) -> None:
    app, held = opened(open_page)
    app.button(key=f"question {held.session.id} hint").click().run()
    place = {"question": QUESTION, "seed": 7, "session": held.session.id}
    again = open_page("questions", **place)
    assert held_of(again) is held and "Hint 1 of 2" in said(again)
    commit(again, right_replies(QUESTION, 7))
    verdict = said(again)
    assert "1.5 of 2 points" in verdict and "1 hint" in verdict
    questions.release(held)  # as after a restart of the server: only the file knows the answer
    later = ended(open_page("questions", **place))
    assert "1.5 of 2 points" in said(later) and len(attempts()) == 1


def test_a_run_that_was_not_finished_can_be_run_after_a_restart(open_page: Opener) -> None:
    app, held = opened(open_page)
    held.run = lambda: None  # type: ignore[method-assign]  # the server ends before the run
    commit(app, {"static": "1", "continuous": "2"})
    questions.release(held)
    later = ended(open_page("questions", question=QUESTION, seed=7, session=held.session.id))
    assert "✗ Wrong" in said(later) and len(attempts()) == 1


def test_a_cancelled_run_is_kept_and_not_scored(open_page: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    app, held = opened(open_page)
    key = f"question {held.session.id}"
    app.text_input(key=f"{key} static").set_value("1")
    app.text_input(key=f"{key} continuous").set_value("2")
    ended = Event()
    monkeypatch.setattr(held.runner, "run", lambda *args: ended.wait(60))
    monkeypatch.setattr(held.runner, "close", ended.set)
    next(button for button in app.button if button.label == "Commit and run").click().run()
    assert "Running `batching.static_vs_continuous`" in said(app)
    assert "first run on this machine" in app.get("progress")[0].proto.text
    app.button(key="question answer stop").click().run()
    app.run()
    assert "Not scored: the run was interrupted" in said(app)
    [attempt] = attempts()
    assert not attempt.scored and attempt.rating is None


def test_a_challenge_is_decided_by_the_engine(open_page: Opener) -> None:
    app, held = opened(open_page)
    commit(app, right_replies(QUESTION, 7))
    key = f"question {held.session.id} challenge"
    for text, told in (
        ("many", "type numbers with commas"),
        ("1, 9, 9, 1", "Not met"),
        (", ".join(["9"] * 12), "✓ Met"),
    ):
        app.text_input(key=f"{key} reply").set_value(text)
        next(button for button in app.button if button.label == "Run it").click().run()
        ended(app)
        assert told in said(app), text


def test_the_steps_of_a_run_open_on_the_page_step(open_page: Opener, tmp_path: Path) -> None:
    app, held = opened(open_page)
    commit(app, right_replies(QUESTION, 7))
    app.button(key=f"question {held.session.id} vary watch").click().run()
    ended(app)
    app.button(key="question_open_run").click().run()
    assert not app.exception and app.session_state["selection"].run == "mine:static_vs_continuous"


def test_guessing_lowers_the_rating(open_page: Opener) -> None:
    app, held = opened(open_page)
    commit(app, right_replies(QUESTION, 7))
    app.button(key=f"question {held.session.id} guessed").click().run()
    with State.open() as state:
        assert cards(state)[QUESTION].last_rating == 1


def test_next_takes_surprises_first_and_the_list_says_when_each_comes_again(open_page: Opener) -> None:
    app, _ = opened(open_page)
    commit(app, {"static": "1", "continuous": "2"}, sure=99)
    app.button(key="questions_all").click().run()
    assert "1 question due, 1 surprise first" in said(app)
    app.button(key="questions_next").click().run()
    again = held_of(app)
    assert again.instance.id == QUESTION and again.record.seed != 7


@pytest.mark.parametrize("kind", ["numeric", "choice", "multi", "order", "debug", "predict"])
def test_every_kind_that_the_page_asks_has_fields_for_its_replies(open_page: Opener, kind: str) -> None:
    entry = next(entry for entry in load_bank() if entry.kind == kind)
    app, held = opened(open_page, entry.id, 3)
    fields = [*app.text_input, *app.radio, *app.checkbox, *app.multiselect]
    assert fields and any(button.label.startswith("Commit") for button in app.button)
    assert held.instance.question.title.split()[0] in app.title[0].value


@pytest.mark.parametrize("kind", IN_A_TERMINAL)
def test_prose_and_programs_are_sent_to_the_terminal(open_page: Opener, kind: str) -> None:
    entry = next(entry for entry in load_bank() if entry.kind == kind)
    app = open_page("questions", question=entry.id)
    assert f"prep quiz --question {entry.id}" in app.code[0].value


@pytest.mark.parametrize(
    "place", [{"question": "no.such"}, {"session": "nothing"}, {"question": QUESTION, "seed": "x"}]
)
def test_a_damaged_link_is_told_or_opens_the_question(open_page: Opener, place: dict[str, str]) -> None:
    app = open_page("questions", **place)
    assert not app.exception and (app.error or app.text_input)
    if app.error:
        app.button(key="questions_all").click().run()
        assert not app.exception and app.button(key="questions_next")


def test_an_unusable_state_file_is_told_and_the_answer_is_still_graded(
    open_page: Opener, tmp_path: Path
) -> None:
    app, _ = opened(open_page)
    state_path().parent.mkdir(parents=True, exist_ok=True)
    state_path().write_bytes(b"not a database" * 100)
    commit(app, right_replies(QUESTION, 7))
    text = said(app)
    assert "This answer is not saved" in text and "✓ Right" in text


@pytest.mark.parametrize(
    ("page", "button", "place"),
    [
        ("learn", "learn_topic_memory", {"topic": "memory"}),
        ("cards", "card_question_memory.kv_per_token", {"question": "memory.kv_per_token"}),
    ],
)
def test_pages_lead_to_questions(open_page: Opener, page: str, button: str, place: dict[str, str]) -> None:
    app = open_page(page, **({"card": "paper.pagedattention"} if page == "cards" else {}))
    keys = [each.key for each in app.button]
    if page == "cards":
        button = next(key for key in keys if key and key.startswith("card_question_"))
        place = {"question": button.removeprefix("card_question_")}
    app.button(key=button).click().run()
    assert not app.exception
    shown = app.session_state["question"]
    assert all(getattr(shown, name) == value for name, value in place.items())
