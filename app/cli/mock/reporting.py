"""`prep mock report`, and the summary at the end of an interview."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape
from rich.padding import Padding

from app.cli import terminal
from app.cli.mock.choosing import SessionArgument, find, short
from app.cli.mock.floor import clock_time
from app.cli.options import JsonOption, make_folder_of, option
from app.cli.quiz import showing
from app.cli.quiz.start import open_state
from prep_common.paths import write_atomically
from prep_common.text import counted

if TYPE_CHECKING:
    from interview.mock.report import Report
    from interview.mock.report.judging import Verdicts
    from interview.mock.session import Session


def report(
    session: SessionArgument = None,
    html: Annotated[Path | None, option("Write a self-contained page.", metavar="FILE")] = None,
    markdown: Annotated[bool, option("Print everything as Markdown.", "--markdown")] = False,
    json: JsonOption = False,
) -> None:
    """Show the report of an interview: marks with their evidence, and topics to practise.

    \b
    Examples:
      prep mock report
      prep mock report --html report.html
      prep mock report --markdown > report.md
    """
    from interview.mock.report import as_html, as_markdown

    make_folder_of(html)
    result = _report_of(session)
    if json:
        terminal.print_json(result.to_json())
    elif markdown:
        print(as_markdown(result))
    elif html is not None:
        write_atomically(html, as_html(result))
        terminal.note(f"{terminal.mark(True)} {terminal.literal(html)}")
    else:
        show(result)


def _report_of(name: str | None) -> Report:
    """Return the saved report of a session, or make it from the log. Raises Problem."""
    from interview.mock.report import load, make
    from interview.mock.session import Session, SessionError, sessions

    if name is None:
        saved = next((s for s in sessions() if s.is_over), None)
        if saved is None:
            raise terminal.Problem("no interview is over yet", "prep mock")
    else:
        saved = find(name)
    try:
        kept = load(saved.spec.id)
        if kept is not None and kept.finished:
            return kept
        session = Session.replay(saved.spec.id)
        return closing_report(session) if session.is_over else make(session, sessions())
    except SessionError as error:
        raise terminal.Problem(str(error), error.next_step) from None


def closing_report(session: Session) -> Report:
    """Finish a session that is over: marks of a configured judge, cards, the report's file."""
    from interview.mock.finish import finish

    with open_state() as state:
        return finish(session, state, judged=_judged(session))


def _judged(session: Session) -> Verdicts | None:
    from interview.mock.report.judging import configured, judge
    from quizzes.free_text.endpoint import JudgeError

    try:
        settings = configured()
        if settings is None:
            return None
        with terminal.status(f"asking the judge {terminal.literal(settings.model)}"):
            return judge(session, settings)
    except JudgeError as error:
        terminal.note(f"[yellow]no marks from the judge:[/] {terminal.literal(error)}")
        return None


def show(result: Report) -> None:
    """Print the report: marks, strengths, gaps with their commands, each question in one line."""
    from interview.mock.assessment import FAR_OFF
    from interview.mock.scenario import role_name

    where = showing.console()
    used = f"{result.minutes_used:g} of {result.minutes} min"
    where.print(f"\n[bold]{escape(result.title)}[/]")
    where.print(f" {escape(role_name(result.role))}, {escape(result.level)} · {used} · {short(result.id)}")
    where.print(f" for {escape(result.level)}: [bold]{escape(result.recommendation)}[/]")
    if result.reason:
        where.print(Padding(f"[dim]{escape(result.reason)}[/]", (0, 0, 0, 1)))
    judged = any(row.judge is not None for row in result.axes)
    headings = ["axis", "machine", "you", *(["judge"] if judged else []), "observed"]
    table = terminal.table(*headings)
    for row in result.axes:
        cells = [_mark(row.machine), _mark(row.own), *([_mark(row.judge)] if judged else [])]
        table.add_row(escape(row.title), *cells, str(row.observations))
    where.print(Padding(table, (0, 0, 0, 1)))
    for row in result.axes:
        if row.machine is not None and row.own is not None and abs(row.own - row.machine) >= FAR_OFF:
            far = f"you rated {row.title.lower()} {row.own}, the evidence says {row.machine}"
            where.print(f" [yellow]{escape(far)}[/]")
    _questions(result)
    if result.strengths:
        where.print("\n [bold]strong[/]")
        for text in result.strengths:
            where.print(showing.bullet(text))
    _gaps(result)
    _rest(result)


def _mark(value: int | None) -> str:
    return "-" if value is None else str(value)


def _questions(result: Report) -> None:
    from interview.mock.scenario import STAGE_NAMES
    from interview.mock.taking_up import quoted

    table = terminal.table("", "question", "of 5", "time", "planned", left=("question",))
    for number, step in enumerate(result.steps, 1):
        value = "-" if step.value is None else f"{step.value:.1f}"
        words = step.asked.removeprefix(quoted(step.asked)).replace("\n", " ")
        asked = words if len(words) <= 60 else words[:57].rsplit(" ", 1)[0] + " ..."
        time, planned = clock_time(step.seconds), clock_time(60 * step.minutes)
        name = f"[cyan]{STAGE_NAMES.get(step.stage, step.stage)}[/]: {showing.inline(asked)}"
        table.add_row(str(number), name, value, time, planned)
    where = showing.console()
    where.width = min(where.width, showing.WIDTH)
    where.print(Padding(table, (0, 0, 0, 1)))


def _gaps(result: Report) -> None:
    from interview.mock.report.markdown import command

    where = showing.console()
    if result.gaps:
        where.print("\n [bold]weak[/]")
    for gap in result.gaps:
        where.print(showing.bullet(f"{gap['step']}: {gap['why']}"))
        for name in gap["learn"]:
            terminal.say(f"     [cyan]{escape(command(name))}[/]", whole=True)


def _rest(result: Report) -> None:
    where = showing.console()
    known = result.calibration
    parts = []
    if known["intervals"]:
        parts.append(f"{known['held']} of {counted(known['intervals'], 'interval')} held; 80 % should")
    if known.get("boundless"):
        parts.append(f"{counted(known['boundless'], 'interval')} too wide to say anything")
    if known["sure"]:
        parts.append(f"sure {counted(known['sure'], 'time')}, {known['sure_and_wrong']} of them wrong")
    where.print()
    for part in parts:
        where.print(f" {part}")
    if result.unreached:
        where.print(showing.prose(f"not asked: {'; '.join(result.unreached)}"))
    if result.cards:
        terminal.say(
            f" {counted(len(result.cards), 'question')} of the bank, asked again from tomorrow: prep review"
        )
    where.print(showing.prose(f"next session: {result.next_session}"))
    terminal.next_command(
        f"prep mock report {short(result.id)} --html report.html", "every answer, with one that scores 5"
    )
