"""Peer rounds: two people draw the same questions from a file that holds no answers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from interview.mock.peer import PeerSession, Round, new_round, read, save
from interview.mock.peer_review import assessed, script
from interview.mock.session import SessionError
from quizzes.experiments.runner import Runner
from tests.interview.helpers import sample

ANSWERS: dict[str, dict[str, Any]] = {
    "rules": {},
    "answer": {"text": "A freed slot is refilled at the next step. At the end 3 slots stay empty. " * 4},
    "picks": {"values": {"slots": 4}},
    "test0": {"pick": "t1"},
    "test": {"pick": "t1"},
    "flaw": {"pick": "a"},
}


def a_round() -> Round:
    return new_round(sample(), "inference.slots", seed=3, minutes=45)


def answer_all(session: PeerSession) -> None:
    while session.turn is not None:
        name = session.turn.id.partition("#")[2]
        keys = getattr(session.turn.want, "keys", [])
        numbers = {"replies": {key: "100" for key in keys if "." not in key}, "confidence": 60}
        session.reply(ANSWERS.get(name, numbers), 20.0)


def test_both_sides_draw_the_same_questions_and_the_file_holds_no_answers(tmp_path: Path) -> None:
    path = tmp_path / "round.prep"
    save(a_round(), path)
    ours, theirs = (PeerSession(read(path), None, sample()) for _ in range(2))
    assert ours.drawn.params == theirs.drawn.params and ours.turn == theirs.turn
    assert "refill" not in path.read_text() and "expect" not in path.read_text()


def test_a_candidate_who_stops_goes_on_at_the_same_turn(tmp_path: Path) -> None:
    path = tmp_path / "round.prep"
    first = PeerSession(a_round(), path, sample())
    first.reply({}, 1.0)
    first.reply(ANSWERS["answer"], 40.0)
    again = PeerSession(read(path), path, sample())
    assert again.turn is not None and first.turn is not None and again.turn.id == first.turn.id
    assert again.elapsed == pytest.approx(41.0)


def test_numbers_are_graded_and_prose_counts_as_the_interviewer_marked_it(runner: Runner) -> None:
    session = PeerSession(a_round(), None, sample())
    answer_all(session)
    session.round.marks = {"walk": {"refill": "hit", "tail": "hit"}}
    session.round.ratings = {"correctness": 2}

    def run(name: str, args: dict[str, object]) -> dict[str, object]:
        return runner.run(name, args).result

    good = assessed(session, run)
    session.round.marks = {"walk": {"refill": "miss", "tail": "contradicted"}}
    bad = assessed(session, run)
    values = [
        next(e.value for e in each.mark("mechanism").evidence if "marked by" in e.why) for each in (good, bad)
    ]
    assert values[0] == 5.0 and values[1] == 1.0
    assert good.mark("correctness").own == 2
    assert all(asked.rows for asked in session.talk.asked if asked.form in ("ask", "experiment", "reverse"))


def test_the_script_has_what_an_interviewer_needs(runner: Runner) -> None:
    session = PeerSession(a_round(), None, sample())
    text = script(session.drawn, 45, lambda name, args: runner.run(name, args).result)
    for words in (
        "If they ask",
        "refills a slot",
        "(must)",
        "static: **",
        "It refutes.",
        "would score 5",
        "Follow up",
    ):
        assert words in text, words


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "damaged, or is not a round"),
        ("[1, 2", "damaged"),
        ("[" * 100_000, "damaged"),
        ("[]", "is not a round of prep mock peer"),
        ('{"name": "something else"}', "is not a round of prep mock peer"),
        ('{"prep": "prep mock round", "format": 2, "round": {}}', "format 2; this version reads 1"),
        ('{"prep": "prep mock round", "format": 1, "round": {}}', "is damaged"),
        ('{"prep": "prep mock round", "format": 1, "round": 7}', "is damaged"),
    ],
)
def test_a_damaged_newer_or_foreign_file_is_named(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "round.prep"
    path.write_text(content)
    with pytest.raises(SessionError, match=words):
        read(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "../../etc"},
        {"seed": "3"},
        {"started": "yesterday"},
        {"replies": [{"turn": "open#rules"}]},
        {"replies": [{"turn": "open#rules", "reply": {}, "seconds": "long"}]},
        {"marks": {"walk": 3}},
        {"ratings": {"correctness": 9}},
        {"unknown": 1},
    ],
)
def test_a_changed_file_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / "round.prep"
    save(a_round(), path)
    data = json.loads(path.read_text())
    data["round"] |= changes
    path.write_text(json.dumps(data))
    with pytest.raises(SessionError, match="damaged"):
        read(path)


def test_replies_that_do_not_fit_and_other_scenarios_are_refused() -> None:
    wrong = {"turn": "nothing#here", "reply": {}, "seconds": 1.0}
    with pytest.raises(SessionError, match="do not fit"):
        PeerSession(replace(a_round(), replies=[wrong]), None, sample())
    bad = {"turn": "open#rules", "reply": {}, "seconds": 1.0}
    also = {"turn": "inference.slots/walk#answer", "reply": {"text": 3}, "seconds": 1.0}
    with pytest.raises(SessionError, match="is damaged"):
        PeerSession(replace(a_round(), replies=[bad, also]), None, sample())
    with pytest.raises(SessionError, match="another version of prep"):
        PeerSession(replace(a_round(), digest="0"), None, sample())


def test_control_characters_of_a_foreign_file_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "round.prep"
    save(replace(a_round(), comment="good \x1b[2J\x07work"), path)
    assert read(path).comment == "good [2Jwork"
