"""Two machines that practise, export and import in any order end up with the same facts and the same cards."""

from __future__ import annotations

import datetime as dt
import itertools
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from quizzes.learning.review import cards
from quizzes.state import Attempt, State, archive

START = dt.datetime(2026, 1, 1, 9, tzinfo=dt.UTC)
QUESTIONS = ("memory.kv_bytes", "batching.static", "lora.slots")


def answer(state: State, session_id: str, question: str, rating: int | None, hours: int) -> Attempt:
    return state.add(
        Attempt(
            session_id, question, 1, hours, {"a": hours}, float(rating != 1), 1.0, rating not in (None, 1), "exact",
            scored=rating is not None, rating=rating, confidence=90, at=START + dt.timedelta(hours=hours),
        )
    )  # fmt: skip


histories = st.lists(
    st.tuples(st.sampled_from(QUESTIONS), st.sampled_from((1, 2, 3, 4, None)), st.integers(0, 2000)),
    max_size=12,
)


def made(history: list[tuple[str, int | None, int]]) -> State:
    state = State.in_memory()
    session = state.begin_session("quiz", {"n": len(history)})
    for question, rating, hours in history:
        answer(state, session.id, question, rating, hours)
    return state


def union(*files: Path) -> tuple[dict[str, Any], list[Any]]:
    with State.in_memory() as state:
        for file in files:
            archive.import_(state, file)
        return archive.facts(state), cards(state)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(histories, min_size=2, max_size=3))
def test_importing_is_idempotent_and_the_order_of_archives_does_not_matter(parts: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for index, part in enumerate(parts):
            files.append(Path(folder) / f"{index}.zip")
            with made(part) as state:
                archive.export(state, files[-1])
        once = union(*files)
        assert all(union(*order) == once for order in itertools.permutations(files))
        assert union(*files, *files) == once


class TwoMachines(RuleBasedStateMachine):
    """Laptop and desktop, one learner."""

    archives = Bundle("archives")

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.states = [State.open(self.root / name / "state.sqlite3") for name in ("laptop", "desktop")]
        self.sessions = [state.begin_session("quiz").id for state in self.states]
        self.expected: list[set[str]] = [set(), set()]
        self.hours = 0
        self.exports = 0

    @rule(
        machine=st.integers(0, 1),
        question=st.sampled_from(QUESTIONS),
        rating=st.sampled_from((1, 2, 3, 4, None)),
    )
    def practise(self, machine: int, question: str, rating: int | None) -> None:
        self.hours += 7
        added = answer(self.states[machine], self.sessions[machine], question, rating, self.hours)
        self.expected[machine].add(added.id)

    @rule(machine=st.integers(0, 1))
    def admit_a_guess(self, machine: int) -> None:
        attempts = self.states[machine].attempts(scored=True)
        if attempts:
            self.states[machine].lower_rating(attempts[-1].id, 1)

    @rule(machine=st.integers(0, 1), days=st.integers(1, 60))
    def move_the_interview(self, machine: int, days: int) -> None:
        self.states[machine].change_settings(interview_date=(START + dt.timedelta(days=days)).date())

    @rule(machine=st.integers(0, 1), question=st.sampled_from(QUESTIONS), stop=st.booleans())
    def suspend_or_resume(self, machine: int, question: str, stop: bool) -> None:
        state = self.states[machine]
        state.suspend(question) if stop else state.resume(question)

    @rule(machine=st.integers(0, 1))
    def restart(self, machine: int) -> None:
        path = self.states[machine].path
        self.states[machine].close()
        self.states[machine] = State.open(path)

    @rule(target=archives, machine=st.integers(0, 1))
    def export(self, machine: int) -> tuple[Path, frozenset[str]]:
        self.exports += 1
        file = self.root / f"{self.exports}.zip"
        archive.export(self.states[machine], file)
        return file, frozenset(self.expected[machine])

    @rule(machine=st.integers(0, 1), exported=archives)
    def import_(self, machine: int, exported: tuple[Path, frozenset[str]]) -> None:
        file, ids = exported
        imported = archive.import_(self.states[machine], file)
        assert imported.added["attempt"] == len(ids - self.expected[machine])
        self.expected[machine] |= ids

    @rule()
    def synchronise(self) -> None:
        for source, target in ((0, 1), (1, 0)):
            self.exports += 1
            file = self.root / f"{self.exports}.zip"
            archive.export(self.states[source], file)
            archive.import_(self.states[target], file)
            self.expected[target] |= self.expected[source]
        assert archive.facts(self.states[0]) == archive.facts(self.states[1])
        assert cards(self.states[0]) == cards(self.states[1])

    @invariant()
    def nothing_is_lost_or_invented(self) -> None:
        for state, ids in zip(self.states, self.expected, strict=True):
            assert {attempt.id for attempt in state.attempts()} == ids

    @invariant()
    def kept_cards_are_the_replayed_ones(self) -> None:
        for state in self.states:
            kept = cards(state)
            state.drop_derived()
            assert cards(state) == kept

    def teardown(self) -> None:
        for state in self.states:
            state.close()
        self.folder.cleanup()


TwoMachines.TestCase.settings = settings(
    max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestTwoMachines = TwoMachines.TestCase
