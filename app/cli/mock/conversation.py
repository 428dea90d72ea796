"""Hold a session in the terminal: show a turn, read its reply, keep it, go on.

Every reply is in the session's file before the next turn is shown. What is typed before a reply is complete (lines of
prose, fields of a design, values) is kept as a draft, so a killed terminal loses at most one line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli import terminal
from app.cli.mock import showing
from app.cli.mock.floor import Clock, Floor, clock_time
from app.cli.quiz.dialogue import Dialogue, Quit, Skip
from app.cli.quiz.editor import edit
from interview.mock.conduct import LATE
from interview.mock.explaining import UNKNOWN
from interview.mock.turns import Ask, Continue, Mark, Rate, RunExperiment
from prep_common.paths import write_atomically
from prep_common.text import counted
from quizzes.grading import ParseError

if TYPE_CHECKING:
    from interview.mock.drawn import Drawn
    from interview.mock.peer import PeerSession
    from interview.mock.session import Session
    from interview.mock.turns import Turn
    from quizzes.experiments.runner import Runner

HELP = (
    "/clarify QUESTION asks the interviewer for a fact · /pause stops the clock · /time tells the time · "
    "/draw opens a whiteboard in your editor, kept with the session · /pass gives no answer · "
    "q leaves (/q where q could be an answer): everything is kept"
)
ONE_MORE = "Let me stop you there. Finish with what you have."


class Draft:
    """Text typed for a turn that has no reply yet. A file beside the session's, gone with the reply."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.turn = ""
        self.data: dict[str, Any] = {}
        self.seconds = 0.0
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            self.turn, self.data = str(saved["turn"]), dict(saved["data"])
            self.seconds = max(0.0, float(saved["seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass

    def of(self, turn: str) -> dict[str, Any]:
        """Return the draft of a turn, empty for a new one."""
        if turn != self.turn:
            self.turn, self.data, self.seconds = turn, {}, 0.0
        return self.data

    def save(self, seconds: float) -> bool:
        """Keep the draft. A full disk is no reason to stop: then return False, and it ends with the terminal."""
        try:
            draft = {"turn": self.turn, "data": self.data, "seconds": round(seconds, 1)}
            write_atomically(self._path, json.dumps(draft))
        except OSError:
            return not self.data
        return True

    def discard(self) -> None:
        self.turn, self.data, self.seconds = "", {}, 0.0
        self._path.unlink(missing_ok=True)


class Conversation:
    """A session at a terminal. `folder` holds the candidate's programs and drawings."""

    def __init__(self, session: Session | PeerSession, floor: Floor, runner: Runner, folder: Path) -> None:
        self.session = session
        self.floor = floor
        self.runner = runner
        self.folder = folder
        self.draft = Draft(folder / "draft.json")
        self.carried: list[str] = []
        """Lines of prose written before a clarifying question."""
        self.step_seconds = 0.0
        """Time of the current step, without the current turn."""
        self.seconds_of: dict[str, float] = {}
        """Experiment -> seconds of its last run in this sitting."""
        self.between: Callable[[], None] | None = None
        """Called before each new step."""
        self._told = 0.0
        floor.before_prompt = self.watch_the_clock
        floor.on = {
            "help": lambda _: self.say_note(HELP),
            "time": lambda _: self.say_note(self.time()),
            "pause": lambda _: self.pause(),
            "draw": lambda _: self.draw(),
            "clarify": self.clarify,
        }

    @property
    def clock(self) -> Clock:
        return self.floor.clock

    @property
    def turn(self) -> Turn:
        assert self.session.turn is not None
        return self.session.turn

    def hold(self, reply_to: Callable[[Conversation, Turn], dict[str, Any]]) -> None:
        """Show turns and read replies until the session is over. Raises Quit, KeyboardInterrupt."""
        while not self.session.is_over:
            turn = self.turn
            if turn.began and self.between is not None:
                self.between()
            self._show(turn)
            self._warm(turn)
            self.draft.of(turn.id)
            self.clock.start(self.draft.seconds)
            while True:
                reply = reply_to(self, turn)
                seconds = 0.0 if isinstance(turn.want, RunExperiment) else self.clock.seconds
                try:
                    turn.want.check(reply)
                except ParseError as error:
                    showing.warning(str(error))
                    continue
                break
            self._write(reply, seconds)
            self.step_seconds += seconds
            self.draft.discard()

    def keep(self) -> bool:
        """Keep the draft of this turn. Return whether nothing of it is lost when the terminal ends."""
        return self.draft.save(self.clock.seconds)

    def _write(self, reply: dict[str, Any], seconds: float) -> None:
        """Write the reply to the session's file, and wait while the disk is full. Raises Quit."""
        from interview.mock.session import SessionError

        while True:
            try:
                return self.session.reply(reply, seconds)
            except (OSError, SessionError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                showing.warning(f"your answer is not kept yet: {why}")
            prompt = " free some space, then Enter keeps it; q leaves without this answer > "
            if Dialogue.read(self.floor, prompt).lower() in ("q", ":q", "/q"):
                raise Quit

    def note(self, kind: str, **more: Any) -> None:
        """Keep a note in the log. A full disk is no reason to stop."""
        try:
            self.session.note(kind, turn=self.turn.id, **more)
        except OSError as error:
            showing.warning(f"this is not in the log: {error.strerror}")

    def _show(self, turn: Turn) -> None:
        if turn.chart is not None:
            showing.chart(turn.chart, coach=self.session.spec.coach)
        before, say = turn.before, turn.say.removeprefix(turn.before).lstrip()
        if self._told >= showing.OVER:  # it was told during the step
            before = before.removeprefix(LATE).lstrip()
        if turn.began and turn.stage != "core":  # the beginning of the core tells the problem
            showing.said(before)
        else:
            say = "\n\n".join(text for text in (before, say) if text)
        if turn.began:
            self.step_seconds = self._told = 0.0
            showing.step_line(turn, self.session.elapsed, self.session.spec.minutes)
        elif isinstance(turn.want, Mark) and say:
            showing.heading("your answer, in hindsight")
        showing.said(say)

    def show_where(self) -> None:
        """After an interruption, print what was asked last, if the turn itself does not say it."""
        turn, key = self.turn, self.turn.id.rpartition("#")[0]
        asked = next(step for step in reversed(self.session.talk.asked) if step.key == key)
        if not turn.began:
            showing.step_line(turn, self.session.elapsed, self.session.spec.minutes)
            if asked.say:
                self.say_note("you were asked:")
                showing.quote(asked.say)
        self.step_seconds = asked.seconds

    def _warm(self, turn: Turn) -> None:
        """Begin to import what the next run needs, while the candidate thinks."""
        run = turn.want.instance.question.experiment if isinstance(turn.want, Ask) else None
        if run is not None:
            self.runner.warm(run.run)

    @contextmanager
    def command_free(self) -> Iterator[None]:
        """Read lines without commands: the interviewer has the keyboard."""
        before = self.floor.on, self.floor.before_prompt
        self.floor.on, self.floor.before_prompt = {}, lambda: None
        try:
            yield
        finally:
            self.floor.on, self.floor.before_prompt = before

    # -- the clock

    def watch_the_clock(self) -> None:
        """Tell once that 80 % of the step's time is used, and once that 120 % is."""
        minutes = None if self.session.is_over else self.turn.minutes
        if not minutes or isinstance(self.turn.want, Continue | Mark | Rate):
            return
        spent = self.step_seconds + self.clock.seconds
        share = spent / (60 * minutes)
        if share >= showing.OVER > self._told:
            self._told = share
            showing.said(ONE_MORE)
            self.note("stopped", seconds=round(spent, 1))
        elif share >= showing.AMBER > self._told:
            self._told = share
            showing.warning(f"{clock_time(spent)} of {clock_time(60 * minutes)}: come to the end")

    def time(self) -> str:
        spent = self.session.elapsed + self.clock.seconds
        left = max(0.0, 60 * self.session.spec.minutes - spent)
        step = self.step_seconds + self.clock.seconds
        of = f" of about {self.turn.minutes:g} min" if self.turn.minutes else ""
        return f"{clock_time(spent)} elapsed, {clock_time(left)} left; this step {clock_time(step)}{of}"

    def pause(self) -> None:
        self.keep()
        line = ""

        def wait() -> None:
            nonlocal line
            line = Dialogue.read(self.floor, " the clock stands still; Enter continues, q leaves > ")

        paused = self.clock.pause(wait)
        self.note("pause", seconds=round(paused, 1))
        if line.lower() in ("q", ":q", "/q"):
            raise Quit

    # -- whiteboard and clarifying questions

    def draw(self) -> None:
        """Open the session's whiteboard; the drawing is kept in the log."""
        path = self.folder / "whiteboard.txt"
        before = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        text = edit(before, "whiteboard.txt")
        if text == before:
            self.say_note("the whiteboard is unchanged")
            return
        text = text[:20_000]
        write_atomically(path, text)
        self.note("drawing", text=text)
        self.say_note(f"kept: {counted(len(text.splitlines()), 'line')}; {terminal.shown(path)}")

    def clarify(self, question: str) -> None:
        """Answer a clarifying question at a prompt that is not for prose: it is kept, but it counts for nothing."""
        question = question or self.floor.read(" your question > ")
        drawn = self.drawn()
        if not question:
            return
        if drawn is None:
            showing.said("Ask me about the problem, once I have told you what it is.")
            return
        fact = drawn.clarify(question)
        told = drawn.text(fact.answer) if fact else UNKNOWN
        self.note("clarify", asked=question, told=told if fact else "")
        showing.said(told)

    def drawn(self) -> Drawn | None:
        """Return the scenario of the current turn; None outside of one."""
        name = self.turn.id.partition("/")[0]
        return next((scenario for scenario in self.session.scenarios if scenario.scenario.id == name), None)

    def say_note(self, text: str) -> None:
        showing.note(text)


@contextmanager
def command(floor: Floor, **more: Any) -> Iterator[None]:
    """Add commands for one prompt."""
    before = dict(floor.on)
    floor.on.update(more)
    try:
        yield
    finally:
        floor.on = before


def read_line(
    floor: Floor, prompt: str, no_pass: str = "this cannot be passed: choose what seems best"
) -> str:
    """Read a line that is no command. no_pass: the warning if it is passed. Raises Quit."""
    while True:
        try:
            line = floor.read(prompt)
        except Skip:
            showing.warning(no_pass)
            continue
        if line.lower() in ("q", ":q"):
            raise Quit
        if line not in ("?", ":?"):
            return line
        floor.command("/help")
