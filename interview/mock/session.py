"""Sessions and their log: one JSONL file each, a line per reply, written before the next turn is shown.

with Session.start(spec) as session:          # or Session.open(id): continues where it stopped
    while not session.is_over:
        session.turn                          # what the interviewer says and waits for
        session.reply({"text": "..."}, seconds=41.0)

An interrupted session, even a killed one, continues at the same turn: the replies are replayed. A lock keeps a second
program from the same session.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from interview.mock.conduct import conduct
from interview.mock.drawn import draw_scenario
from interview.mock.scenario_list import Scenarios, load_scenarios
from interview.mock.talk import Heard, Spec, Talk, warm_key
from interview.mock.turns import Turn
from prep_common.paths import data_dir
from quizzes.instance import draw
from quizzes.question_bank import Bank, load_bank
from quizzes.yaml_files import Index

FORMAT = 1
_UNTIMED = re.compile(r"#(?:mark\.|run)")
"""Turns during which the candidate's clock stands still."""
UNFIT, FIT = "unfit", "fit"
"""Notes of a session that a version could not replay, and of one that a later attempt could."""


class SessionError(Exception):
    """A session that cannot be used: what is wrong, and the next step."""

    def __init__(self, what: str, next_step: str) -> None:
        super().__init__(what)
        self.next_step = next_step


@dataclass(frozen=True)
class Saved:
    """A session's file, as far as it was written."""

    path: Path
    spec: Spec
    lines: list[dict[str, Any]]
    """Replies: {"turn", "reply", "seconds", "at"}."""
    notes: list[dict[str, Any]]
    """{"note": kind, "at", ...}: pauses, drawings, the report that was written."""

    @property
    def is_over(self) -> bool:
        return bool(self.lines) and self.lines[-1]["turn"].startswith("self#")

    @property
    def elapsed(self) -> float:
        """Seconds of the candidate's time, as in the report: without marks and runs."""
        counted = (line for line in self.lines if not _UNTIMED.search(line["turn"]))
        return sum(float(line.get("seconds", 0.0)) for line in counted)

    @property
    def can_go_on(self) -> bool:
        """Return whether it is not over, and the last attempt to replay it did not fail."""
        return not self.is_over and not _is_unfit(self.notes)


def folder() -> Path:
    return data_dir() / "mock"


def sessions() -> list[Saved]:
    """Return all readable sessions, the newest first."""
    saved = []
    for path in sorted(folder().glob("*.jsonl"), reverse=True):
        try:
            saved.append(read(path.stem))
        except SessionError:
            continue
    return saved


def read(session_id: str) -> Saved:
    """Read a session's file. A last line that was cut off by a crash is left out. Raises SessionError."""
    path = folder() / f"{session_id}.jsonl"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SessionError(f"no interview is called {session_id}", "prep mock list") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SessionError(f"cannot read the session {session_id}: {error}", "prep mock list") from None
    entries = list(_entries(text))
    if not entries or "spec" not in entries[0]:
        raise SessionError(f"{path} is not a session", "prep mock list")
    head = entries[0]
    if head.get("format") != FORMAT:
        raise SessionError(
            f"the session {session_id} has format {head.get('format')}; this version reads {FORMAT}",
            "update prep, or use the version that wrote it",
        )
    try:
        spec = Spec(**{**head["spec"], "scenarios": tuple(head["spec"]["scenarios"])})
    except (TypeError, KeyError) as error:
        raise SessionError(f"the session {session_id} is damaged: {error}", "prep mock list") from None
    lines = [entry for entry in entries[1:] if "turn" in entry and "reply" in entry]
    return Saved(path, spec, lines, [entry for entry in entries[1:] if "note" in entry])


def _entries(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            return
        if not isinstance(entry, dict):
            return
        yield entry


class Session:
    """A session that is being held, or was held."""

    def __init__(self, saved: Saved, scenarios: Scenarios | None = None, *, lock: bool = True) -> None:
        self.spec = saved.spec
        self.talk = Talk(saved.spec)
        self.path = saved.path
        self.notes = list(saved.notes)
        self.past: list[tuple[Turn, dict[str, Any]]] = []
        """Turns that were answered, with their replies."""
        scenarios = scenarios or load_scenarios()
        self._file = _locked(saved.path) if lock else None
        try:
            self._replay(saved, scenarios)
        except SessionError:
            if self._file is not None:
                with suppress(OSError):
                    self.note(UNFIT)
            self.close()
            raise
        if self._file is not None and _is_unfit(self.notes):
            with suppress(OSError):
                self.note(FIT)

    def _replay(self, saved: Saved, scenarios: Scenarios) -> None:
        """Conduct the session up to its last reply. Raises SessionError if its turns are not those of the file."""
        kept = f"its log is kept: {saved.path}"
        bank = load_bank() if saved.spec.warm else None
        _check_digests(saved.spec, scenarios, bank, kept)
        drawn = [draw_scenario(scenarios.scenario(name), saved.spec.seed) for name in saved.spec.scenarios]
        warm = None if bank is None else draw(bank.question(saved.spec.warm), saved.spec.seed)
        self.scenarios = drawn
        self._conversation = conduct(self.talk, drawn, warm)
        self.turn: Turn | None = next(self._conversation)
        for number, line in enumerate(saved.lines):
            unfit = SessionError(
                f"the session {saved.spec.id} does not fit this version of prep (reply {number + 1}); {kept}",
                "begin a new one: prep mock",
            )
            if self.turn is None or line["turn"] != self.turn.id:
                raise unfit
            try:
                self._step(line["reply"], float(line["seconds"]))
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise unfit from error

    @classmethod
    def start(cls, spec: Spec, scenarios: Scenarios | None = None) -> Self:
        """Begin a session and its file. Raises SessionError if the file cannot be written."""
        path = folder() / f"{spec.id}.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            head = json.dumps({"format": FORMAT, "spec": asdict(spec)}, allow_nan=False)
            with path.open("x", encoding="utf-8") as file:
                file.write(head + "\n")
        except OSError as error:
            raise SessionError(
                f"cannot write {path}: {error.strerror}",
                "free some disk space, or use another folder: PREP_HOME=/some/folder prep ...",
            ) from None
        return cls(Saved(path, spec, [], []), scenarios)

    @classmethod
    def open(cls, session_id: str, scenarios: Scenarios | None = None) -> Self:
        """Continue a session. Raises SessionError."""
        return cls(read(session_id), scenarios)

    @classmethod
    def replay(cls, session_id: str, scenarios: Scenarios | None = None) -> Self:
        """Return a session as far as it went, only to be read. Raises SessionError."""
        return cls(read(session_id), scenarios, lock=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def delete(self) -> None:
        """Delete the session's file and the folder of its drafts, programs and drawings."""
        self.path.unlink()
        shutil.rmtree(self.path.with_suffix(""), ignore_errors=True)
        self.close()

    @property
    def is_over(self) -> bool:
        return self.turn is None

    @property
    def elapsed(self) -> float:
        """Seconds of the candidate's time, without runs, marks and pauses."""
        return self.talk.elapsed

    @property
    def remaining(self) -> float:
        return max(0.0, 60 * self.spec.minutes - self.elapsed)

    def reply(self, reply: dict[str, Any], seconds: float = 0.0) -> None:
        """Keep the reply, then go on to the next turn. Raises ParseError for a reply that cannot be used, and OSError
        if it cannot be written: then nothing has changed, and the same reply can be sent again."""
        assert self.turn is not None
        self.turn.want.check(reply)
        seconds = max(0.0, seconds)
        self._write({"turn": self.turn.id, "reply": reply, "seconds": round(seconds, 3)})
        self._step(reply, seconds)

    def note(self, kind: str, **more: Any) -> None:
        """Keep something that is no reply: a pause, a drawing."""
        self._write({"note": kind, **more})
        self.notes.append({"note": kind, **more})

    def _write(self, entry: dict[str, Any]) -> None:
        assert self._file is not None, "this session is only read"
        entry = {**entry, "at": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds")}
        line = (json.dumps(entry, default=str) + "\n").encode()  # escapes lone surrogates of a terminal, too
        end = self._file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError:
            with suppress(OSError):
                self._file.truncate(end)  # else the next line would be appended to half of this one
            raise

    def _step(self, reply: dict[str, Any], seconds: float) -> None:
        assert self.turn is not None
        self.past.append((self.turn, reply))
        try:
            self.turn = self._conversation.send(Heard(reply, seconds))
        except StopIteration:
            self.turn = None


def _is_unfit(notes: list[dict[str, Any]]) -> bool:
    attempts = [note["note"] for note in notes if note["note"] in (UNFIT, FIT)]
    return attempts[-1:] == [UNFIT]


def _check_digests(spec: Spec, scenarios: Scenarios, bank: Bank | None, kept: str) -> None:
    asked: list[tuple[Index[Any], str, str, str]] = [
        (scenarios, name, name, f"its scenario {name}") for name in spec.scenarios
    ]
    if bank is not None:
        asked.append((bank, spec.warm, warm_key(spec.warm), f"its question {spec.warm}"))
    for index, name, key, what in asked:
        if name not in index:
            raise SessionError(f"{what} does not exist any more; {kept}", "begin a new one: prep mock")
        if spec.digests.get(key, index.digest(name)) != index.digest(name):
            raise SessionError(f"{what} has changed since it began; {kept}", "begin a new one: prep mock")


def _locked(path: Path) -> Any:
    """Open a session's file for more lines, cut off an unfinished one, and lock it."""
    try:
        file = path.open("r+b", buffering=0)
    except OSError as error:
        raise SessionError(
            f"cannot write {path}: {error.strerror}",
            "free some disk space, or use another folder: PREP_HOME=/some/folder prep ...",
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise SessionError(
            "this session is open in another terminal or tab", "go on there, or close it first"
        ) from None
    text = file.read()
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        file.truncate(whole)
    return file
