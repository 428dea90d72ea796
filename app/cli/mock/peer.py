"""`prep mock peer`: two people, one of them interviews. On one machine, or with a file that they send each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape

from app.cli import terminal
from app.cli.mock import showing
from app.cli.mock.choosing import MINUTES, Wanted, load, specify
from app.cli.mock.conversation import Conversation
from app.cli.mock.floor import Floor
from app.cli.mock.replies import reply_to
from app.cli.mock.starting import problems_of_sessions
from app.cli.options import ScriptOption, make_folder_of, option
from app.cli.quiz.dialogue import Quit, Skip, printable
from app.cli.quiz.free_text import MARK_HELP, MARKS
from app.cli.quiz.showing import bullet, prose
from prep_common.paths import write_atomically
from quizzes.experiments.registry import Inconclusive, NeedsHardware
from quizzes.experiments.runner import RunFailed, Runner

if TYPE_CHECKING:
    from interview.mock.peer import PeerSession
    from interview.mock.scenario import Step
    from interview.mock.talk import Asked


def peer(
    host: Annotated[bool, option("You interview.", "--host")] = False,
    join: Annotated[Path | None, option("You are interviewed: answer this round.", metavar="FILE")] = None,
    mark: Annotated[Path | None, option("You interviewed: mark these answers.", metavar="FILE")] = None,
    out: Annotated[Path | None, option("Write the round here, to send it.", metavar="FILE")] = None,
    role: Annotated[str | None, option("inference, kernel, platform, sre or applied.")] = None,
    level: Annotated[str | None, option("mid, senior or staff.")] = None,
    minutes: Annotated[int, option("20, 45 or 60.")] = 45,
    scenario: Annotated[
        str | None, option("Id of a scenario; prep mock scenarios lists them.", metavar="ID")
    ] = None,
    seed: Annotated[int | None, option("The same seed gives the same round.")] = None,
    script: ScriptOption = None,
) -> None:
    """Interview another person, with a script, model answers and runs; or be interviewed. No network is used.

    On one machine, the keyboard goes back and forth: the candidate answers, the interviewer marks. With --out, the
    round is a file: the candidate answers it with --join and sends it back, the interviewer marks it with --mark.

    \b
    Examples:
      prep mock peer --host --role sre --minutes 20
      prep mock peer --host --scenario inference.stalled_streams --out round.prep
      prep mock peer --join round.prep
      prep mock peer --mark round.prep
    """
    from interview.mock.peer import new_round

    make_folder_of(out)
    if sum((host, join is not None, mark is not None)) != 1:
        raise terminal.Problem(
            "say whether you interview or are interviewed",
            "prep mock peer --host, --join FILE or --mark FILE",
        )
    floor = Floor(script)
    with problems_of_sessions():
        if join is not None:
            return _join(floor, join, out)
        if mark is not None:
            return _mark(floor, mark)
        if minutes not in MINUTES:
            raise terminal.Problem(f"--minutes is 20, 45 or 60, not {minutes}")
        spec = specify(Wanted(role, level, minutes, scenario, seed=seed))
        peer_round = new_round(load(), spec.scenarios[0], seed=spec.seed, minutes=minutes)
        return _host(floor, peer_round, out)


# -- the interviewer


def _host(floor: Floor, peer_round: Any, out: Path | None) -> None:
    """Write the script; then write the round's file, or hold the round on this machine."""
    from interview.mock.peer import PeerSession, save
    from interview.mock.peer_review import script

    session = PeerSession(peer_round, out)
    if out is not None and out.exists():
        raise terminal.Problem(f"{out} exists", "give --out another name")
    with Runner() as runner, terminal.status("running the experiments for your script"):
        text = script(session.drawn, peer_round.minutes, _runs(runner))
    path = session.folder / "interviewer.md"
    write_atomically(path, text)
    terminal.say(f"your script: {terminal.literal(path)}", whole=True)
    if out is not None:
        save(peer_round, out)
        terminal.say(f"the round:   {terminal.literal(out)}", whole=True)
        terminal.next_command(f"prep mock peer --join {out}", "on the candidate's machine, with that file")
        return
    session.path = session.folder / "round.prep"
    floor.read(" read the script first; then give the keyboard to the candidate and press Enter > ")
    _hold(floor, session, between=True)
    if session.is_over:
        _finish(floor, session)


def _hold(floor: Floor, session: PeerSession, *, between: bool) -> None:
    """Ask the candidate. between: hand the keyboard to the interviewer after each step."""
    showing.opening(session.spec, "answers are marked by a person")
    with Runner() as runner:
        talk = Conversation(session, floor, runner, session.folder)
        if session.round.replies and not session.is_over:
            talk.show_where()
        if between:
            talk.between = lambda: _hand_over(floor, session, runner, talk)
        try:
            talk.hold(reply_to)
            if between:
                _hand_over(floor, session, runner, talk)
        except (Quit, KeyboardInterrupt) as left:
            talk.keep()
            where = session.path or session.folder
            showing.note(f"everything is kept in {where}")
            if isinstance(left, KeyboardInterrupt):
                raise


def _hand_over(floor: Floor, session: PeerSession, runner: Runner, talk: Conversation) -> None:
    """Let the interviewer mark the step that was just answered."""
    from interview.mock.peer_review import step_of

    if not session.talk.asked or session.is_over and not session.talk.asked[-1].replies:
        return
    # a turn of the next step exists already: its step is the last one asked
    done = session.talk.asked[-1 if session.is_over else -2 :][0]
    step = step_of(session.drawn, done)
    if step is None:
        return
    with talk.command_free():
        floor.read(" give the keyboard to the interviewer; Enter > ")
        _clear()
        _mark_step(floor, session, step, done, _runs(runner))
        floor.read(" give the keyboard back to the candidate; Enter > ")
        _clear()


def _mark(floor: Floor, path: Path) -> None:
    """Mark a round that was answered."""
    from interview.mock.peer import PeerSession, read, save
    from interview.mock.peer_review import step_of

    session = PeerSession(read(path), path)
    if not session.is_over:
        showing.warning("the candidate has not answered everything")
    with Runner() as runner:
        try:
            for asked in session.talk.asked:
                step = step_of(session.drawn, asked)
                if step is not None and (asked.replies or asked.passed):
                    _mark_step(floor, session, step, asked, _runs(runner))
                    save(session.round, path)
        except Quit:
            save(session.round, path)
            showing.note(f"your marks are kept in {path}")
            return
    _finish(floor, session)


def _mark_step(floor: Floor, session: PeerSession, step: Step, asked: Asked, run: Any) -> None:
    """Show an answer beside what is right, and read the interviewer's marks of its key points. Raises Quit."""
    from interview.mock.peer_review import judge, probes

    drawn, where = session.drawn, showing.console()
    showing.heading(f"{step.stage}: for the interviewer")
    showing.quote(asked.say)
    text = asked.replies.get("text")
    if text:
        where.print(" [bold]they said[/]")
        for line in text.splitlines():
            showing.quote(printable(line))
    elif asked.passed:
        showing.note("they passed")
    marks = session.round.marks.setdefault(step.id, {})
    judge(session.talk, drawn, step, asked, run, marks)
    showing.chart({"rows": asked.rows}, coach=True, who="they")
    if asked.explain:
        where.print(prose(asked.explain))
    if step.five:
        where.print(prose(f"**would score 5**: {drawn.text(step.five)}"))
    for line in probes(drawn, step, run):
        where.print(bullet(line))
    for point in drawn.key_points(step) if text else ():
        if point.id not in marks:
            where.print(bullet(f"{point.say}{' (must)' if point.must else ''}"))
            marks[point.id] = _read_mark(floor)


def _read_mark(floor: Floor) -> str:
    while True:
        try:
            key = floor.read(f"   {MARK_HELP.replace('I said', 'they said')} > ").lower()
        except Skip:
            continue
        if key in ("q", ":q"):
            raise Quit
        if key in MARKS:
            return MARKS[key]


def _finish(floor: Floor, session: PeerSession) -> None:
    """Read the interviewer's ratings and a comment, then show the marks."""
    from interview.mock.assessment import titles
    from interview.mock.peer import save
    from interview.mock.scenario import AXES

    peer_round = session.round
    showing.heading("your marks, interviewer")
    showing.note("1 weak · 3 solid · 5 excellent, for this level. Enter leaves an axis out.")
    try:
        for axis in AXES:
            while axis not in peer_round.ratings:
                line = floor.read(f" {titles()[axis].lower()}, 1-5 > ")
                if line in ("1", "2", "3", "4", "5"):
                    peer_round.ratings[axis] = int(line)
                elif line.lower() in ("q", ":q"):
                    raise Quit
                elif not line:
                    break
        peer_round.comment = peer_round.comment or floor.read(" one sentence for the candidate > ")
    except (Quit, Skip):
        pass
    peer_round.is_marked = True
    assert session.path is not None
    save(peer_round, session.path)
    _debrief(session)
    terminal.next_command(f"prep mock peer --join {session.path}", "shows the candidate the marks")


# -- the candidate


def _join(floor: Floor, path: Path, out: Path | None) -> None:
    """Answer a round, or read its marks."""
    from interview.mock.peer import PeerSession, read, save

    peer_round = read(path)
    session = PeerSession(peer_round, out or path)
    if peer_round.is_marked:
        return _debrief(session, full=True)
    assert session.path is not None
    save(peer_round, session.path)  # a place that cannot be written is told before the first answer
    if not session.is_over:
        _hold(floor, session, between=False)
    if session.is_over:
        terminal.say(f"answered: send {terminal.literal(session.path)} back to your interviewer", whole=True)
        terminal.next_command(f"prep mock peer --mark {session.path}", "on the interviewer's machine")
    else:
        terminal.next_command(f"prep mock peer --join {session.path}", "continues exactly here")


def _debrief(session: PeerSession, *, full: bool = False) -> None:
    """Print marks; full: also each answer with a model answer."""
    from interview.mock.assessment import titles
    from interview.mock.peer_review import assessed, step_of

    where = showing.console()
    with Runner() as runner, terminal.status("running the experiments"):
        assessment = assessed(session, _runs(runner))
    if full:
        for asked in session.talk.asked:
            step = step_of(session.drawn, asked)
            if step is None:
                continue
            showing.heading(step.stage)
            showing.quote(asked.say)
            for point in session.drawn.key_points(step):
                marked = session.round.marks.get(step.id, {}).get(point.id, "not marked")
                where.print(bullet(f"**{marked}**: {point.say}"))
            showing.chart({"rows": asked.rows}, coach=True)
            if step.five:
                where.print(prose(f"**would score 5**: {session.drawn.text(step.five)}"))
    table = terminal.table("axis", "answers and marks", "interviewer", "observed")
    for mark in assessment.marks:
        own = "-" if mark.own is None else str(mark.own)
        value = "-" if mark.value is None else str(mark.value)
        table.add_row(escape(titles()[mark.axis]), value, own, str(len(mark.evidence)))
    showing.heading(session.drawn.scenario.title)
    where.print(table)
    if session.round.comment:
        where.print(prose(f"**Interviewer:** {session.round.comment}"))


def _runs(runner: Runner) -> Any:
    """Return a function that runs an experiment, or tells why there is no result and returns None."""

    def run(name: str, args: dict[str, Any]) -> dict[str, Any] | None:
        try:
            return runner.run(name, args).result
        except (Inconclusive, NeedsHardware, RunFailed, ValueError) as error:
            terminal.note(f"[yellow]no result of {name}:[/] {terminal.literal(error)}")
            return None

    return run


def _clear() -> None:
    """Clear the screen, so that neither reads what the other wrote."""
    where = showing.console()
    if terminal.is_live(where):
        where.clear()
