"""`prep drill`: incidents on a real server of this machine, to diagnose and repair."""

from __future__ import annotations

import random
import signal
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from app.cli import terminal
from app.cli.options import JsonOption, ScriptOption, argument, option
from prep_common.text_file import read_text

if TYPE_CHECKING:
    from interview.drills.checking import Proof
    from interview.drills.drill import Drill
    from interview.drills.session import Result, Session

HELP = {
    "look NAME ...": "see figures; paid once, cheap ones first",
    "looks": "list the looks and what they cost",
    "hypothesis N SURE FIGURES": "the cause, your confidence in percent, and the figures that decide; before the fix",
    "fix N | fix OPTION=VALUE": "apply a fix and run the same load again",
    "done": "end, and see the score",
    "quit": "leave",
}
"""Command -> what it does."""
WIDTH = 78
LEAST_WIDTH = 16
"""Columns beside the head of an item, however narrow the terminal is."""
COMMANDS = ("look", "l", "looks", "hypothesis", "h", "fix", "help", "?", "done", "quit", "q")


def list_(
    level: Annotated[int | None, option("Only this level, 1 to 3.")] = None, json: JsonOption = False
) -> None:
    """List the drills: the symptom, never the cause.

    \b
    Examples:
      prep drill list --level 1
      prep drill list --json
    """
    chosen = _chosen(level)
    if json:
        terminal.print_json([terminal.pick(entry, "code title level") for entry in chosen])
        return
    rows = [
        (entry.code, entry.level, entry.title) for entry in sorted(chosen, key=lambda entry: entry.number)
    ]
    terminal.out().print(terminal.table("drill", "level", "symptom", left=("symptom",), rows=rows))
    terminal.next_command("prep drill start random")


def start(
    drill: Annotated[str, argument("A drill of prep drill list, or random.", metavar="ID|random")] = "random",
    level: Annotated[int | None, option("Choose among drills of this level, 1 to 3.")] = None,
    minutes: Annotated[float, option("Time to find the cause.", min=0.1, max=120)] = 15.0,
    script: ScriptOption = None,
    json: JsonOption = False,
) -> None:
    """Be on call: a server runs under load with one thing wrong. Find out what, and repair it.

    First the healthy server runs (yesterday), then the faulty one, about 15 s each. Both are paced: a step takes 10 ms
    and more, as on a larger model. Looks cost points, cheap ones least. A fix is applied for real, and the same load
    runs again. A script has one command per line.

    \b
      look latency queue             see figures; looks lists them and their cost
      hypothesis 2 80 waiting_mean   cause, confidence in %, figures that decide
      fix 1                          or options: fix max-num-seqs=8
      done                           end, and see the score

    \b
    Examples:
      prep drill start random --level 1
      prep drill start D04 --minutes 10
      prep drill start D04 --script commands.txt --json
    """
    from interview.drills import LIBRARIES

    terminal.need_libraries("drills need", LIBRARIES, "drill", "serve")
    from interview.drills.drill import find_drill
    from interview.drills.session import Session

    chosen = random.choice(_chosen(level)) if drill == "random" else find_drill(drill)
    if script is None and not sys.stdin.isatty():
        raise terminal.Problem(
            "a drill needs a terminal, or its commands in a file", "prep drill start ID --script FILE"
        )
    lines = None if script is None else _script(script)
    signal.signal(signal.SIGTERM, terminal.interrupt)
    session = Session.start(chosen, minutes)
    say = terminal.err() if json else terminal.out()
    terminal.say(f"[bold]{chosen.code} · {terminal.literal(chosen.title)}[/]   level {chosen.level}", say)
    with terminal.stages("yesterday") as tell:
        before = session.run_healthy(lambda text: tell(f"yesterday, 1 of 2: {text}"))
        now = session.run_faulty(lambda text: tell(f"today, 2 of 2: {text}"))
    terminal.say(f"objective: {chosen.objective.in_words}", say)
    terminal.say(f"today {now.good:.0%} of the requests meet it, yesterday {before.good:.0%} did", say)
    _Floor(session, say).hold(lines)
    _finish(session, json)


def report(
    session: Annotated[
        str, argument("Id of a session, or of a drill: its newest session.", metavar="ID")
    ] = "",
    markdown: Annotated[bool, option("A post-mortem in Markdown, with the timeline.", "--markdown")] = False,
    json: JsonOption = False,
) -> None:
    """Show what happened in a drill, or write its post-mortem. Without ID, list the sessions.

    \b
    Examples:
      prep drill report
      prep drill report D04
      prep drill report D04 --markdown
    """
    from interview.drills.post_mortem import post_mortem
    from interview.drills.session import read, sessions

    if not session:
        _list_sessions(sessions(), json)
        return
    events = read(session)
    if json:
        terminal.print_json(events)
    elif markdown:
        print(post_mortem(events), end="")
    else:
        terminal.markdown(post_mortem(events))
        terminal.next_command(f"prep drill report {session} --markdown", "the same as a file to complete")


def _list_sessions(names: list[str], json: bool) -> None:
    """Print the sessions, the newest first, with their state and points."""
    from interview.drills.drill import find_drill
    from interview.drills.score import MOST
    from interview.drills.session import NoSession, read

    rows = []
    for name in names:
        try:
            events = read(name)
        except NoSession:
            continue  # of another version
        end = next((event for event in events if event["event"] == "end"), None)
        points = "not ended" if end is None else str(sum(end[part] for part in MOST))
        rows.append((name, points, find_drill(events[0]["drill"]).title))
    if json:
        terminal.print_json([dict(zip(("session", "points", "symptom"), row, strict=True)) for row in rows])
    elif rows:
        terminal.out().print(terminal.table("session", "points", "symptom", left=("symptom",), rows=rows))
    else:
        terminal.note("no drill was held yet")


def check(
    drills: Annotated[list[str] | None, argument("Drills; by default all.", metavar="[ID]...")] = None,
    write: Annotated[bool, option("Keep the figures in signatures.json.", "--write")] = False,
    json: JsonOption = False,
) -> None:
    """Prove drills, for their authors: run each healthy, faulty and fixed, and compare the signatures of all.

    A drill takes about 70 s. Exit code 1 if one is unfair. Without a terminal, stderr gets a line per run.

    \b
    Examples:
      prep drill check seqs-too-high
      prep drill check D01 router-blind --json
      prep drill check seqs-too-high --write
    """
    from interview.drills import checking
    from interview.drills.drill import find_drill, load_drills

    index = load_drills()
    for problem in index.problems:
        terminal.say(f"{terminal.mark(False)} {terminal.literal(problem)}")
    names = drills or list(index.entries)
    chosen = [find_drill(name) for name in names]
    proofs: dict[str, Proof] = {}
    bad = len(index.problems)
    with terminal.progress(len(chosen), "drills") as advance, terminal.stages("starting") as tell:
        for entry in chosen:
            proof = proofs[entry.id] = checking.prove(entry, tell)
            if write:
                checking.write({entry.id: proof})
            bad += len(proof.problems(entry))
            if not json:
                _show_proof(entry, proof)
            advance(entry.id)
    same = [pair for pair in checking.same_signature(checking.recorded() | proofs) if set(pair) & set(proofs)]
    for first, second in same:
        terminal.say(f"{terminal.mark(False)} {first} and {second} have the same signature", terminal.err())
    if json:
        terminal.print_json({name: {"signature": p.signature, "good": p.good} for name, p in proofs.items()})
    if bad or same:
        raise SystemExit(terminal.CHECKS_FAILED)


def _show_proof(drill: Drill, proof: Proof) -> None:
    from interview.drills.figures import shown

    problems = proof.problems(drill)
    shares = "  ".join(f"{name} {share:.0%}" for name, share in proof.good.items())
    terminal.say(f"{terminal.mark(not problems)} [bold]{drill.id}[/]  good: {shares}")
    rows = [
        (f"{name}{' *' if name in drill.evidence else ''}", "up" if sign > 0 else "down",
         shown(name, proof.faulty[name]), shown(name, proof.healthy[name]))
        for name, sign in proof.signature.items()
    ]  # fmt: skip
    terminal.out().print(terminal.table("figure (*: decides)", "direction", "faulty", "healthy", rows=rows))
    for problem in problems:
        terminal.say(f"  {terminal.mark(False)} {problem}")


def _chosen(level: int | None) -> list[Drill]:
    from interview.drills.drill import load_drills

    if level is not None and not 1 <= level <= 3:
        raise terminal.Problem(f"levels are 1 to 3, got {level}", "prep drill list")
    return [drill for drill in load_drills() if level in (None, drill.level)]


def _script(path: Path) -> list[str]:
    """Return the commands of a script; raises Problem for one that cannot be read, or an unknown command or look."""
    from interview.drills.figures import LOOKS

    lines = [
        line.strip() for line in read_text(path).splitlines() if line.strip() and not line.startswith("#")
    ]
    for number, line in enumerate(lines, 1):  # now, rather than after two runs of a server
        if (word := line.split()[0]) not in COMMANDS:
            raise terminal.Problem(
                f"line {number} of the script: {word!r} is not a command",
                f"commands are {', '.join(COMMANDS)}",
            )
        for name in line.split()[1:] if word in ("look", "l") else ():
            if name not in LOOKS:
                raise terminal.Problem(
                    f"line {number} of the script: no look is called {name!r}",
                    f"looks are {', '.join(LOOKS)}",
                )
    return lines


class _Floor:
    """The dialogue of a session: commands from a terminal or a script."""

    def __init__(self, session: Session, console: Any) -> None:
        self.session, self.console = session, console

    def hold(self, lines: list[str] | None) -> None:
        """Follow commands until one of them, or the script, ends the drill. Raises Problem for a wrong script."""
        self._tell_choices()
        for number, line in enumerate(self._typed() if lines is None else lines, 1):
            if lines is not None:
                self._say(f"[dim]> {terminal.literal(line)}[/]")
            word, _, rest = line.partition(" ")
            if word in ("done", "quit", "q"):
                return
            try:
                self._follow(word, rest.split())
            except ValueError as error:
                if lines is not None:
                    raise terminal.Problem(f"line {number} of the script: {error}") from None
                self._say(f"[yellow]{terminal.literal(error)}[/]")

    def _typed(self) -> Iterator[str]:
        while True:
            left = int(self.session.seconds_left)
            try:
                line = input(f"{left // 60}:{left % 60:02} > ").strip()
            except EOFError:
                return
            if line:
                yield line

    def _follow(self, word: str, rest: list[str]) -> None:
        if word in ("look", "l"):
            self._look(rest)
        elif word in ("hypothesis", "h"):
            self._guess(rest)
        elif word == "fix":
            self._fix(rest)
        elif word == "looks":
            self._tell_looks()
        elif word in ("help", "?"):
            for command, says in HELP.items():
                self._item(f" {command:25} ", says)
            self._tell_choices()
        else:
            raise ValueError(f"{word!r} is not a command; help lists them")

    def _look(self, names: list[str]) -> None:
        if not names:
            raise ValueError("which look? looks lists them")
        for name in names:
            for line in self.session.look(name):
                self.console.print(f" {line}", markup=False, soft_wrap=True)

    def _guess(self, rest: list[str]) -> None:
        names = self.session.drill.hypotheses
        if len(rest) < 3 or not rest[1].rstrip("%").isdigit():
            raise ValueError("like this: hypothesis 2 80 preemptions   (cause, percent, figures that decide)")
        number = rest[0]
        if number.isdigit() and not 1 <= int(number) <= len(names):
            raise ValueError(f"hypotheses are numbered 1 to {len(names)}, got {number}")
        cause = names[int(number) - 1] if number.isdigit() else number
        evidence = [name for part in rest[2:] for name in part.split(",") if name]
        self.session.guess(cause, int(rest[1].rstrip("%")), evidence)
        self._say("noted; now a fix:" if self.session.fixed is None else "noted")

    def _fix(self, rest: list[str]) -> None:
        if not rest:
            raise ValueError("which fix? a number, or options such as max-num-seqs=8")
        wanted = int(rest[0]) if rest[0].isdigit() else " ".join(rest)
        with terminal.stages("fix") as tell:
            result: Result = self.session.fix(wanted, lambda text: tell(f"the same load again: {text}"))
        was = self.session.faulty
        assert was is not None
        words = "objective met" if result.is_met else "objective missed"
        self._say(f"{terminal.mark(result.is_met)} {was.good:.0%} -> {result.good:.0%} good, {words}")

    def _tell_choices(self) -> None:
        from interview.drills.drill import causes

        texts = [causes()[name] for name in self.session.drill.hypotheses]
        for heading, choices in (
            ("hypotheses", texts),
            ("fixes", [fix.say for fix in self.session.drill.fixes]),
        ):
            self._say(heading)
            for number, text in enumerate(choices, 1):
                self._item(f" {number} ", text)
        self._say("[dim]help shows the commands; looks lists the looks[/]")

    def _tell_looks(self) -> None:
        from interview.drills.figures import LOOKS

        for name, look in LOOKS.items():
            self._item(f" {name:12} cost {look.cost}  ", look.shows)

    def _item(self, head: str, text: str) -> None:
        """Print an item of a list, wrapped beside its head."""
        width = min(WIDTH, self.console.width) - len(head)
        lines = textwrap.wrap(text, max(width, LEAST_WIDTH), break_on_hyphens=False)
        for number, line in enumerate(lines):
            self._say((" " * len(head) if number else head) + terminal.literal(line))

    def _say(self, text: str) -> None:
        terminal.say(text, self.console)


def _finish(session: Session, json: bool) -> None:
    """Print the score and the debrief."""
    from interview.drills import debrief
    from interview.drills.drill import causes
    from interview.drills.score import MOST
    from interview.drills.session import read

    score = session.end()
    drill = session.drill
    if json:
        terminal.print_json(
            {"session": session.id, "drill": drill.id, "total": score.total, "solved": score.is_solved}
            | terminal.pick(score, "cause evidence fix looks brier cost seconds")
        )
        return
    parts = [(name, getattr(score, name), most) for name, most in MOST.items()]
    terminal.say(
        "  ".join(f"{name} {terminal.mark(points > 0)} {points}/{most}" for name, points, most in parts)
        + f"   [bold]{score.total}[/] of 100"
    )
    for reason in debrief.lost(drill, read(session.id)):
        terminal.say(f"[dim]{terminal.literal(reason)}[/]")
    if score.brier is not None:
        terminal.say(f"Brier score of your first statement: {score.brier:.2f} (0 is best, 0.25 is a coin)")
    terminal.say(f"[bold]It was:[/] {causes()[drill.cause]}")
    terminal.say(terminal.literal(drill.debrief.say))
    runs = debrief.runs_of(read(session.id))
    for line in debrief.compare(runs, drill.evidence):
        terminal.say(f"[bold]Decides:[/] {terminal.literal(debrief.in_words(line, runs))}")
    terminal.say(f"[bold]Not this:[/] {causes()[drill.debrief.runner_up]}")
    terminal.say(f"Ask: {terminal.literal(drill.debrief.question)}")
    terminal.next_command(f"prep drill report {session.id} --markdown", "the post-mortem")


def _code(word: str) -> str:
    """Return the code of the drill that `word` names."""
    from interview.drills.drill import find_drill

    return find_drill(word).code


drill = terminal.command_app(
    list_,
    start,
    report,
    check,
    help="""Diagnose a server of this machine that has one thing wrong.

    \b
    Examples:
      prep drill list
      prep drill start random --level 1
      prep drill report D04 --markdown
    """,
    shows=("start", _code),
)
