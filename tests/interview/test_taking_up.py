"""Follow-ups quote the answer, and do not ask for a number that it gives."""

from typing import Any

import pytest

from app.cli.mock.showing import said as written
from app.debugger.mock.texts import markdown
from interview.mock.evidence import Evidence
from interview.mock.session import Session
from interview.mock.taking_up import _figures, is_unit, quoted
from tests.interview.helpers import start

REFILL = "Continuous batching refills a slot as soon as a request ends"


def walked(text: str) -> tuple[list[str], Session]:
    """Return what the interviewer says after an answer to the first question, up to the first mark; and the session."""
    said: list[str] = []
    with start() as session:
        session.reply({})
        session.reply({"text": text}, 60.0)
        while session.turn is not None and not session.turn.id.endswith(("#mark.refill", "bound#ask")):
            said.append(session.turn.say)
            session.reply({"pass": True}, 10.0)
    return said, session


def total(session: Session) -> int:
    return sum(session.scenarios[0].params["lens"])


def test_each_follow_up_begins_with_the_words_that_it_is_about() -> None:
    said, _ = walked(f"{REFILL}. At the tail of the queue some slots stay idle.")
    assert said[0] == f'You said: "{REFILL}".\n\nWhen does a slot refill?'
    assert said[1].startswith('You said: "At the tail of the queue some slots stay idle".\n\nWith one slot')


def test_a_long_sentence_is_cut_between_words() -> None:
    said, _ = walked(f"{REFILL}, and then it goes on with the next request, {'and so on, ' * 20}to the end.")
    assert f'You said: "{REFILL}, and then' in said[0] and ' …".\n\nWhen' in said[0]


def test_a_table_of_questions_can_leave_the_quotation_out() -> None:
    said, _ = walked(f"{REFILL}. At the tail of the queue some slots stay idle.")
    assert said[0].removeprefix(quoted(said[0])) == "When does a slot refill?"
    assert quoted("When does a slot refill?\n\nGive a number.") == ""


def test_silence_is_not_quoted() -> None:
    said, _ = walked("")
    assert said[0] == "When does a slot refill?"


@pytest.mark.parametrize(
    ("sentence", "asked"),
    [
        ("With one slot it would take {total} steps.", False),
        ("With one slot it would take {other} steps.", True),
        ("With one slot it would take {total} tokens.", True),
        ("In my last job {total} steps were enough.", True),
        ("With one slot it would take {total} step.", False),
        ("With one slot it would take {other} steps or {total} steps.", True),
        ("With one slot it would take {total} or {other} steps.", True),
        ("With one slot it would take {total}-{other} steps.", True),
        ("With one slot it would take {other}, {total} steps.", True),
        ("{other} steps! With one slot it would take {total} steps.", True),
        ("With one slot and 7 requests it would take {total} steps, so {total}.", False),
        ("With one slot it would never take {total} steps.", True),
        ("With one slot it wouldn't take {total} steps.", True),
        ("With one slot it would not be {total} steps but fewer.", True),
        ("With one slot it would take fewer than {total} steps.", True),
        ("With one slot it would take at least {total} steps.", True),
        ("With one slot it would take over {total} steps.", True),
        ("With one slot, why would it take {total} steps?", True),
        ("With one slot it would take {total} steps; it may equally be 330, 480 or 860.", True),
        ("With one slot it would take {total} steps, or 860 perhaps.", True),
        ("With one slot it would take {total} steps; the queue is not empty before.", True),
        ("With one slot it would take {total} steps. That is not fast.", False),
        ("I deny all of the following. With one slot it would take {total} steps.", True),
        ("With one slot it would take {total} steps. No, that is wrong.", True),
    ],
)
def test_a_number_that_was_said_with_its_unit_is_not_asked_for_and_counts_as_right(
    sentence: str, asked: bool
) -> None:
    with start("numbers") as session:
        number = total(session)
    said, session = walked(f"{REFILL}. {sentence.format(total=number, other=number + 1)}")
    assert any("With one slot, how many" in each for each in said) is asked
    walk: Any = next(each for each in session.talk.asked if each.key.endswith("/walk"))
    assert walk.probes["tail"] == [not asked]
    given = [
        e for e in session.talk.evidence if isinstance(e, Evidence) and f"said {number} steps, right" in e.why
    ]
    assert bool(given) is not asked


@pytest.mark.parametrize("shape", ["{}", "{},000", "0.{:03}"])
def test_a_quotation_does_not_give_the_number_that_its_question_asks_for(shape: str) -> None:
    with start("numbers") as session:
        number = total(session)
    figure = shape.format(number)
    idle = f"At the tail of the queue some slots stay idle, not for {figure} steps"
    said, _ = walked(f"{REFILL}. {idle}. The tail is long.")
    [asked] = [each for each in said if "With one slot, how many" in each]
    assert asked.startswith('You said: "The tail is long"') and figure not in asked


def test_nothing_is_quoted_if_each_sentence_gives_the_number() -> None:
    with start("numbers") as session:
        number = total(session)
    said, _ = walked(f"With one slot it would never take {number} steps.")
    [asked] = [each for each in said if "With one slot, how many" in each]
    assert quoted(asked) == ""


@pytest.mark.parametrize("gap", [" ", "~"])
def test_a_long_gap_between_two_figures_is_read_once(gap: str) -> None:
    """If each place in the gap were tried as the end of the list, it would take hours."""
    assert len(_figures(f"5{gap * 2_000_000}x7 steps")) == 1


@pytest.mark.parametrize(
    ("said", "unit", "same"),
    [
        ("ms", "ms", True),
        ("m", "ms", False),
        ("ms", "m", False),
        ("x", "xs", False),
        ("s", "", False),
        ("GPU", "GPUs", True),
        ("tokens", "token", True),
        ("tokens", "tokens/s", False),
    ],
)
def test_a_unit_is_itself_or_the_other_number_of_a_word(said: str, unit: str, same: bool) -> None:
    assert is_unit(said, unit) is same


def test_a_number_or_an_option_is_taken_up_in_words() -> None:
    with start() as session:
        while session.turn is not None and "/miss#" not in session.turn.id:
            reply: dict[str, Any] = {}
            if session.turn.id.endswith(("walk#answer", "walk#again", "walk#answer1")):
                reply = {"text": REFILL}
            elif "mark" in session.turn.id:
                reply = {"mark": "miss"}
            elif "#run" in session.turn.id:
                reply = {"result": {"static_steps": 176, "continuous_steps": 132}}
            elif "run1#ask" in session.turn.id:
                reply = {"replies": {"static": "300", "continuous": "250"}, "confidence": 60}
            elif "#ask" in session.turn.id or "#again" in session.turn.id:
                reply = {"pass": True}
            session.reply(reply, 10.0)
        assert session.turn is not None
        assert "You said: 300 steps." in session.turn.say


def test_a_quotation_is_never_read_as_markdown() -> None:
    said, _ = walked("**A slot** refills when `a request` ends, <b>see</b> [this](http://x) and so on.")
    assert (
        r'"\*\*A slot\*\* refills when ' + "'a request' ends, " + r"\<b\>see\</b\> \[this\](http" in said[0]
    )
    assert markdown(said[0]).count("&lt;") == 2 and r"\&" not in markdown(said[0])


def test_a_terminal_shows_the_letters_of_a_quotation(capsys: pytest.CaptureFixture[str]) -> None:
    text = r"A slot refills when max_num_seqs is *2*, [this] \`x and <b> are {y} | ~1 #2 C:\dir\[a] `z`"
    interviewer, _ = walked(text)
    written(interviewer[0])
    shown = " ".join(capsys.readouterr().out.split())
    assert text.replace("`", "'") in shown


def test_a_page_reads_no_quotation_as_a_formula() -> None:
    interviewer, _ = walked(r"A slot refills when \$a \$b and $c$ are equal.")
    shown = markdown(interviewer[0])
    assert r"when \\\$a \\\$b and \$c\$ are" in shown
