"""The menu after a verdict: vary the experiment, record it, answer the follow-up, read sources, continue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from app.cli import terminal
from app.cli.options import parse_settings
from app.cli.quiz import showing
from app.cli.quiz.dialogue import Quit
from app.cli.run import plain, show_figures
from engine.trace.files import unused_path
from quizzes.answering import challenge_args, challenge_reply, is_met, next_follow_up
from quizzes.experiments.registry import Inconclusive, NeedsHardware, get, source_file
from quizzes.experiments.runner import RunFailed
from quizzes.state import Attempt

if TYPE_CHECKING:
    from app.cli.quiz.sitting import Sitting
    from quizzes.grading import Graded
    from quizzes.instance import Instance


@dataclass
class Menu:
    """Actions on a graded item. Enter continues."""

    sitting: Sitting
    instance: Instance
    graded: Graded
    attempt: Attempt
    result: dict[str, Any] | None
    expected: dict[str, Any]

    def __post_init__(self) -> None:
        self.follow_up = next_follow_up(self.instance, self.graded, self.attempt.confidence)

    def run(self) -> None:
        """Run actions until the learner continues. Raises Quit."""
        actions = self._actions()
        offer = " · ".join(["Enter next", *(words for words, _ in actions.values()), "q quit"])
        while True:
            line = self.sitting.dialogue.read(f"\n {offer} > ")
            key, _, rest = line.partition(" ")
            if key in ("", "n"):
                return
            if key == "q":
                raise Quit
            if key in actions:
                actions[key][1](rest)
            else:
                self._print(f" [dim]{offer}[/]")

    def _actions(self) -> dict[str, tuple[str, Callable[[str], None]]]:
        """Return key -> (words, action)."""
        question, has_run = self.instance.question, self.instance.question.experiment is not None
        actions = {
            "f": ("f follow-up", self._follow, self.follow_up is not None),
            "v": ("v vary", self._vary, has_run),
            "t": ("t trace", self._trace, has_run),
            "a": ("a model answer", self._interview, question.interview is not None),
            "s": ("s sources", self._sources, True),
            "u": ("u I guessed", self._guessed, True),
        }
        return {key: (words, action) for key, (words, action, is_offered) in actions.items() if is_offered}

    def _vary(self, text: str) -> None:
        """Run the experiment again with other arguments. Enter or s leaves. Raises Quit."""
        run = self.instance.question.experiment
        assert run is not None
        args = self.instance.run_args()
        if not text:
            now = ", ".join(f"{name}={plain(value)}" for name, value in args.items())
            self._print(f" now: {now}")
            text = self.sitting.dialogue.read(" name=value > ")
        while text not in ("", "s"):
            if text == "q":
                raise Quit
            try:
                changed = parse_settings([part for part in text.replace(", ", ",").split() if part])
            except terminal.Problem as error:
                self._print(
                    f" [yellow]{escape(str(error))}[/] [dim]{escape(error.next_step)}; Enter: menu[/]"
                )
                text = self.sitting.dialogue.read(" name=value > ")
                continue
            self._run_and_show(run.run, {**args, **changed})
            return

    def _run_and_show(self, name: str, args: dict[str, Any]) -> dict[str, Any] | None:
        try:
            outcome = self.sitting.run_experiment(name, args)
        except (Inconclusive, NeedsHardware, RunFailed, ValueError) as error:
            self._print(f" [yellow]{escape(str(error))}[/]")
            return None
        show_figures(showing.console(), outcome.result, get(name).result_units)
        return outcome.result

    def _trace(self, text: str) -> None:
        """Record the run, step by step, for prep trace."""
        run = self.instance.question.experiment
        assert run is not None
        path = unused_path(text or f"{self.instance.id.split('.')[1]}.itrace")
        try:
            self.sitting.runner.run(run.run, self.instance.run_args(), trace=path)
        except (Inconclusive, NeedsHardware, RunFailed) as error:
            self._print(f" [yellow]{escape(str(error))}[/]")
            return
        if path.exists():
            shown = terminal.literal(path)
            command = terminal.as_typed(f"prep trace info {shown}")
            showing.console().print(f" recorded {shown}; read it:\n [cyan]{command}[/]", soft_wrap=True)
        else:
            self._print(" [dim]this experiment does not step an engine, so it has no trace[/]")

    def _follow(self, _: str) -> None:
        """Ask the follow-up. One with an experiment is a challenge that the engine decides."""
        follow_up = self.follow_up
        assert follow_up is not None
        ask = self.instance.render(follow_up.ask, result=self.result, expected=self.expected)
        showing.console().print(showing.prose(f"**Interviewer:** {ask}"))
        if follow_up.experiment is None or follow_up.pass_ is None:
            self.sitting.dialogue.read(" answer aloud, then press Enter > ")
            if follow_up.goto is not None:
                command = terminal.as_typed(f"prep quiz --question {follow_up.goto}")
                self._print(f" a graded question on it: [cyan]{command}[/]")
            self.follow_up = None  # offered once
            return
        text = self.sitting.dialogue.read(" your numbers > ")
        if not text:
            return
        try:
            reply = challenge_reply(self.instance, follow_up, text)
            args = challenge_args(self.instance, follow_up, reply)
            result = self._run_and_show(follow_up.experiment.run, args)
            if result is not None:
                met = is_met(self.instance, follow_up, reply, result)
                self._print(f" {terminal.mark(met)} {'met' if met else 'not met: try again with f'}")
        except ValueError as error:
            self._print(f" [yellow]{escape(str(error))}[/]")

    def _interview(self, _: str) -> None:
        question = self.instance.question
        assert question.interview is not None
        showing.interview(
            question.title,
            question.interview,
            lambda text: self.instance.render(text, result=self.result, expected=self.expected),
        )

    def _sources(self, _: str) -> None:
        question = self.instance.question
        for source in question.sources:
            more = " ".join(filter(None, [source.version, source.url, source.as_of]))
            self._print(f" {escape(source.ref)} [dim]{escape(more)}[/]")
        if question.experiment is not None:
            self._print(f" [dim]{source_file(question.experiment.run)}[/]")

    def _guessed(self, _: str) -> None:
        """Lower the rating, so that the question is due soon."""
        self.sitting.state.lower_rating(self.attempt.id, 1)
        self._print(" [dim]noted: the question is repeated as if your answer had been wrong[/]")

    def _print(self, text: str) -> None:
        showing.console().print(text)
