"""Peer rounds: two people, one of them interviews. The candidate's part of a scenario, without verdicts and marks.

A round is a JSON file that the two send each other; nothing else connects them. It names a scenario and a seed, from
which both sides draw the same questions, and collects the replies, then the interviewer's marks. It holds no answers.

    asked      prep mock peer --host --out round.prep       the interviewer
    answered   prep mock peer --join round.prep             the candidate
    marked     prep mock peer --mark round.prep             the interviewer; the candidate then joins to read it
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from interview.mock.case import Case
from interview.mock.drawn import Drawn, draw_scenario
from interview.mock.explaining import explain_step
from interview.mock.scenario import Step
from interview.mock.scenario_list import Scenarios, load_scenarios
from interview.mock.session import SessionError
from interview.mock.talk import Asked, Conversation, Heard, Spec, Talk
from interview.mock.turns import Ask, Continue, Form, Menu, Program, Turn, read_pick
from prep_common.paths import data_dir, write_atomically
from prep_common.text_file import UnreadableFile, read_text, unreadable
from quizzes.grading import ParseError
from quizzes.state.records import new_id

KIND, FORMAT = "prep mock round", 1
MOST_BYTES = 5_000_000
OPENING = (
    "{minutes} minutes. Your interviewer reads your answers later or sits beside you. Think aloud, and give numbers "
    "with their units. Experiments run when your answers are marked."
)


@dataclass
class Round:
    """A round as its file holds it."""

    id: str
    scenario: str
    digest: str
    """Hash of the scenario's content: both sides need the same."""
    seed: int
    role: str
    level: str
    minutes: int
    started: str
    replies: list[dict[str, Any]] = field(default_factory=list)
    """{"turn", "reply", "seconds"}."""
    marks: dict[str, dict[str, str]] = field(default_factory=dict)
    """Step -> key point -> mark of the interviewer."""
    ratings: dict[str, int] = field(default_factory=dict)
    """Axis -> the interviewer's rating."""
    comment: str = ""
    is_marked: bool = False


def new_round(scenarios: Scenarios, scenario: str, *, seed: int, minutes: int) -> Round:
    """Return a round that has not begun."""
    entry = scenarios.entries[scenario]
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    return Round(new_id(), scenario, scenarios.digest(scenario), seed, entry.role, entry.level, minutes, now)


def save(played: Round, path: Path) -> None:
    """Write a round. Raises SessionError."""
    data = {"prep": KIND, "format": FORMAT, "round": asdict(played)}
    try:
        write_atomically(path, json.dumps(data, indent=1) + "\n")
    except OSError as error:
        raise SessionError(
            f"cannot write {path}: {error.strerror}", "choose another place with --out"
        ) from None


def read(path: Path) -> Round:
    """Read a round. Raises SessionError for a file that is damaged, newer, or something else."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SessionError(f"{path} is too large for a round", "ask for the file again")
        data = json.loads(read_text(path))
    except OSError as error:
        raise SessionError(str(unreadable(path, error)), "ask for the file") from None
    except UnreadableFile as error:
        raise SessionError(str(error), "ask for the file again") from None
    except (ValueError, RecursionError):
        raise SessionError(f"{path} is damaged, or is not a round", "ask for the file again") from None
    if not isinstance(data, dict) or data.get("prep") != KIND:
        raise SessionError(
            f"{path} is not a round of prep mock peer", "prep mock peer --host --out round.prep"
        )
    if data.get("format") != FORMAT:
        raise SessionError(
            f"{path} has format {data.get('format')!r}; this version reads {FORMAT}",
            "both need the same version of prep",
        )
    try:
        loaded = Round(**_clean(data["round"]))
        _check(loaded)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SessionError(f"{path} is damaged: {error}", "ask for the file again") from None
    return loaded


def _clean(value: Any) -> Any:
    """Return JSON values without control characters, which a terminal would obey."""
    if isinstance(value, str):
        return "".join(letter for letter in value if letter.isprintable() or letter in "\n\t")
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _check(loaded: Round) -> None:
    """Raise ValueError, TypeError or KeyError for fields of the wrong kind."""
    for name, kind in (("id", str), ("scenario", str), ("digest", str), ("seed", int), ("minutes", int)):
        if not isinstance(getattr(loaded, name), kind):
            raise ValueError(f"{name} is {getattr(loaded, name)!r}")
    if not loaded.id.isalnum():
        raise ValueError(f"id is {loaded.id!r}")
    dt.datetime.fromisoformat(loaded.started)
    for line in loaded.replies:
        if not isinstance(line["turn"], str) or not isinstance(line["reply"], dict):
            raise ValueError("a reply is of the wrong kind")
        float(line["seconds"])
    if not all(isinstance(mark, dict) for mark in loaded.marks.values()):
        raise ValueError("marks are of the wrong kind")
    if not all(type(value) is int and 1 <= value <= 5 for value in loaded.ratings.values()):
        raise ValueError("a rating is a whole number from 1 to 5")


class PeerSession:
    """The candidate's side of a round: turns and replies, kept in its file after each one. As `session.Session`."""

    def __init__(self, played: Round, path: Path | None, scenarios: Scenarios | None = None) -> None:
        self.round = played
        self.path = path
        scenarios = scenarios or load_scenarios()
        if played.scenario not in scenarios or scenarios.digest(played.scenario) != played.digest:
            raise SessionError(
                f"this round needs the scenario {played.scenario} of another version of prep",
                "both need the same version; begin a new round",
            )
        scenario = scenarios.scenario(played.scenario)
        self.drawn = draw_scenario(scenario, played.seed)
        self.scenarios = [self.drawn]
        self.spec = Spec(
            played.id,
            played.role,
            played.level,
            played.minutes,
            played.seed,
            (played.scenario,),
            "",
            coach=False,
        )
        self.talk = Talk(self.spec)
        self.notes: list[dict[str, Any]] = []
        self._conversation = conduct_peer(self.talk, self.drawn)
        self.turn: Turn | None = next(self._conversation)
        for line in played.replies:
            if self.turn is None or self.turn.id != line["turn"]:
                raise SessionError("the replies of this round do not fit its questions", "ask for it again")
            try:
                self.turn.want.check(line["reply"])
                self._step(line["reply"], float(line["seconds"]))
            except (ParseError, KeyError, TypeError, ValueError) as error:
                raise SessionError(f"a reply of this round is damaged: {error}", "ask for it again") from None

    @property
    def is_over(self) -> bool:
        return self.turn is None

    @property
    def elapsed(self) -> float:
        return self.talk.elapsed

    @property
    def folder(self) -> Path:
        """Folder of the candidate's drafts and programs."""
        return data_dir() / "mock" / f"peer-{self.round.id}"

    def reply(self, reply: dict[str, Any], seconds: float = 0.0) -> None:
        """Keep the reply, then go on to the next turn. Raises ParseError, SessionError."""
        assert self.turn is not None
        self.turn.want.check(reply)
        seconds = round(max(0.0, seconds), 3)
        self.round.replies.append({"turn": self.turn.id, "reply": reply, "seconds": seconds})
        try:
            if self.path is not None:
                save(self.round, self.path)
        except (OSError, SessionError):
            self.round.replies.pop()
            raise
        self._step(reply, seconds)

    def note(self, kind: str, **more: Any) -> None:
        self.notes.append({"note": kind, **more})

    def _step(self, reply: dict[str, Any], seconds: float) -> None:
        try:
            self.turn = self._conversation.send(Heard(reply, seconds))
        except StopIteration:
            self.turn = None


def steps_of(drawn: Drawn, minutes: int) -> list[Step]:
    """Return the steps of the main line that fit, the first two in any case."""
    steps: list[Step] = []
    left = 1.1 * minutes
    for step in drawn.scenario.main_line:
        if len(steps) < 2 or step.minutes <= left:
            steps.append(step)
            left -= step.minutes
    return steps


def conduct_peer(talk: Talk, drawn: Drawn) -> Conversation:
    """Ask the main line, without probes and verdicts."""
    opening = talk.begin("open", None, "open", "", "", 1)
    say = OPENING.format(minutes=talk.spec.minutes)
    talk.hear(opening, (yield talk.turn(opening, "rules", say, Continue(), began=True)))
    talk.preface = drawn.text(drawn.scenario.brief)
    for step in steps_of(drawn, talk.spec.minutes):
        key = f"{drawn.scenario.id}/{step.id}"
        asked = talk.begin(key, step, step.stage, step.form, drawn.wording(step), step.minutes)
        yield from _FORMS[step.form](talk, drawn, step, asked)


def _ask(talk: Talk, drawn: Drawn, step: Step, asked: Asked) -> Conversation:
    say = asked.say
    if step.picks:
        form = Form(tuple(step.picks), dict(drawn.said[step.id]))
        heard = yield talk.turn(asked, "picks", say, form, began=True)
        values = talk.hear(asked, heard)["values"]
        drawn.said[step.id] = {pick.id: read_pick(pick, values[pick.id]) for pick in step.picks}
        asked.replies["values"], say = dict(drawn.said[step.id]), ""
    heard = yield talk.turn(asked, "ask", say, Ask(drawn.question(step)), began=not step.picks)
    reply = talk.hear(asked, heard)
    asked.passed = bool(reply.get("pass"))
    asked.replies["replies"] = reply.get("replies", {})
    asked.confidence = reply.get("confidence")


def _design(talk: Talk, drawn: Drawn, step: Step, asked: Asked) -> Conversation:
    canvas = step.canvas
    assert canvas is not None
    start = {pick.id: pick.start for pick in canvas.fields}
    heard = yield talk.turn(asked, "design", asked.say, Form(tuple(canvas.fields), start), began=True)
    given = {**start, **talk.hear(asked, heard)["values"]}
    asked.replies["values"] = {pick.id: read_pick(pick, given[pick.id]) for pick in canvas.fields}


def _incident(talk: Talk, drawn: Drawn, step: Step, asked: Asked) -> Conversation:
    """Show all recorded figures, and ask for the cause and the repair."""
    case = Case.of(step)
    shown = case.looks_left([])
    say = "\n\n".join([asked.say, case.opening, *map(case.shown, shown), "What is the cause?"])
    heard = yield talk.turn(asked, "cause", say, case.hypothesis(shown), began=True)
    asked.replies = dict(talk.hear(asked, heard))
    heard = yield talk.turn(
        asked, "fix", "What do you change?", Menu(tuple(drawn.shuffled(step, case.fixes)))
    )
    asked.replies["fixes"] = [talk.hear(asked, heard)["pick"]]


def _reverse(talk: Talk, drawn: Drawn, step: Step, asked: Asked) -> Conversation:
    reverse = step.reverse
    assert reverse is not None
    say = f"{asked.say}\n\n> {drawn.text(reverse.answer)}"
    tests = tuple((test.id, drawn.text(test.text)) for test in drawn.shuffled(step, reverse.tests))
    flaws = tuple((flaw.id, drawn.text(flaw.text)) for flaw in drawn.shuffled(step, reverse.flaw))
    heard = yield talk.turn(asked, "test", say, Menu(tests), began=True)
    asked.replies["test"] = talk.hear(asked, heard)["pick"]
    heard = yield talk.turn(asked, "flaw", "What is wrong with the answer?", Menu(flaws))
    asked.replies["flaw"] = talk.hear(asked, heard)["pick"]


def _code(talk: Talk, drawn: Drawn, step: Step, asked: Asked) -> Conversation:
    assert step.code is not None
    heard = yield talk.turn(asked, "code", asked.say, Program(step.code), began=True)
    asked.replies |= talk.hear(asked, heard)


_FORMS = {
    "ask": _ask,
    "experiment": _ask,
    "prose": explain_step,
    "canvas": _design,
    "incident": _incident,
    "code": _code,
    "reverse": _reverse,
}
