"""Open and close a sitting: the bank, the state file, the worker process, the summary."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli import terminal
from app.cli.quiz.dialogue import Dialogue
from quizzes.question_bank import Bank, load_bank
from quizzes.state import Session, State

if TYPE_CHECKING:
    from app.cli.quiz.sitting import Sitting


@contextmanager
def open_state() -> Iterator[State]:
    """Open the learner's state. If its file is unusable, print why and continue without saving."""
    state, error = State.open_or_in_memory()
    if error is not None:
        terminal.tell_error(f"{error}; this sitting is not saved", error.next_step)
    with state:
        yield state


def open_bank() -> Bank:
    """Load the questions. Broken files are reported once and left out."""
    bank = load_bank()
    for problem in bank.problems[:3]:
        terminal.note(f"[yellow]left out:[/] {terminal.literal(problem)}")
    if not len(bank):
        raise terminal.Problem("the question bank is empty", "prep bank lint", code=terminal.ENVIRONMENT)
    return bank


def drawn(seed: int | None) -> int:
    """Return the seed, or a random one."""
    return random.SystemRandom().randrange(1 << 30) if seed is None else seed


def hold(
    items: Iterable[tuple[str, int]],
    *,
    bank: Bank,
    state: State,
    kind: str,
    spec: dict[str, Any] | None = None,
    session: Session | None = None,
    first: int = 1,
    script: Path | None = None,
    json: bool = False,
    exam: bool = False,
    minutes: float | None = None,
    total: int | None = None,
    dialogue: Dialogue | None = None,
    quiet: bool = False,
) -> Sitting:
    """Ask questions by (id, seed) and print a summary.

    session: a session to continue from item `first`. spec: the options of a new session, saved so that it can be
    continued. total: number of items if `items` chooses them one by one; needs a session. dialogue: reads the answers
    instead of one for `script`. quiet: the caller prints the results. Ctrl-C raises KeyboardInterrupt at the end.
    """
    from app.cli.quiz import asking
    from app.cli.quiz.sitting import Sitting
    from quizzes.experiments.runner import Runner

    if session is None:
        items = list(items)
        session = state.begin_session(kind, {**(spec or {}), "items": items, "exam": exam})
    state.claim(session.id)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    with Runner() as runner:
        dialogue = dialogue or Dialogue(script, quiet=json)
        sitting = Sitting(bank, state, session, dialogue, runner, exam, deadline, quiet=json or quiet)
        sitting.committed = {(pair[0].question_id, pair[0].seed): pair for pair in state.committed(session)}
        done = asking.ask_all(sitting, items, first=first, total=total)
    if done or not dialogue.is_live:
        state.end_session(session.id)
    if json:
        terminal.print_json(
            {
                "kind": kind,
                "complete": done,
                "summary": asking.figures(sitting.records),
                "items": [asdict(record) for record in sitting.records],
            }
        )
    elif not quiet:
        asking.show(sitting)
    if sitting.interrupted:
        raise KeyboardInterrupt  # the answers are kept; the exit code says that the sitting was interrupted
    return sitting
