"""Shared by the claims commands: load claims, print tests, exhibits and rulings."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from rich.markup import escape

from app.cli import terminal
from app.cli.options import argument
from app.cli.run import plain
from app.cli.run import told as told_run
from quizzes.claims.claim_list import Claims, load_claims

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quizzes.claims.claim import Claim
    from quizzes.claims.court import CaseOutcome, Ruling, Run

ClaimId = Annotated[str, argument("A claim from: prep claims list", metavar="ID")]
COLOUR = {
    "confirmed": "green",
    "refuted": "red",
    "depends": "yellow",
    "outdated": "magenta",
    "inconclusive": "dim",
    "skipped": "dim",
}
FORM = {
    "general": "true or false in every case; if cases differ, it depends",
    "existential": "one case in which it holds confirms it",
    "universal": "one case in which it fails refutes it",
    "conjunctive": "all its parts must hold together",
}
WORD = {True: "[green]holds[/]", False: "[red]fails[/]", None: "[dim]undecided[/]"}


def load() -> Claims:
    """Load the claims. Broken files are reported on stderr and left out."""
    claims = load_claims()
    for problem in claims.problems:
        terminal.note(f"[yellow]left out:[/] claims/bank/{terminal.literal(problem)}")
    return claims


@contextmanager
def told() -> Iterator[None]:
    """End a broken test or run in one clear line."""
    from quizzes.claims.court import BrokenTest

    try:
        with told_run():
            yield
    except BrokenTest as error:
        fix = "correct its file in quizzes/claims/bank"
        raise terminal.Problem(f"the test is broken: {error}", fix, code=terminal.CHECKS_FAILED) from None


@contextmanager
def court(what: str) -> Iterator[Run]:
    """Yield a function that runs an experiment in a worker process: name, arguments -> result."""
    from quizzes.experiments.runner import Runner

    with Runner() as runner, terminal.loading(what), told():
        yield lambda name, args: runner.run(name, args).result


def verdict_word(verdict: str | None) -> str:
    """Return the verdict in capitals and colour."""
    if verdict is None:
        return "[bold]FOR DISCUSSION[/]"
    return f"[bold {COLOUR[verdict]}]{verdict.upper()}[/]"


def heading(claim: Claim) -> None:
    console = terminal.out()
    console.print(f"[bold]{claim.id}[/]  [dim]{escape(claim.where)} · {claim.topic} · {claim.kind}[/]")
    quotes = "“{}”" if terminal.unicode_ok() else '"{}"'
    console.print(f"[bold]{quotes.format(escape(' '.join(claim.claim.split())))}[/]\n")


def print_test(claim: Claim) -> None:
    """Print all that the test uses: every argument, each case and the rule of the verdict."""
    from quizzes.claims.court import arguments
    from quizzes.claims.report import number

    test = claim.test
    assert test is not None
    console = terminal.out()
    console.print("[bold]Test (fixed before the run)[/]")
    with told():
        settings = ", ".join(f"{name}={plain(value)}" for name, value in arguments(claim, test, {}).items())
    console.print(f"  [cyan]{test.run}[/]  [dim]{escape(settings)}[/]")
    console.print(f"  rule: {FORM[test.form]}")
    for case in test.cases:
        more = ", ".join(f"{name}={plain(value)}" for name, value in case.args.items())
        console.print(f"  case: {escape(case.when)}" + (f"  [dim]{escape(more)}[/]" if more else ""))
        if case.run:
            console.print(f"    experiment: [cyan]{case.run}[/]")
        if case.setting:
            console.print(f"    part of {escape(case.setting)}")
        if case.outside:
            console.print(f"    not counted: {escape(case.outside)}")
        if case.until:
            source = f"{case.until.ref}, {case.until.version}"
            console.print(f"    speaks for releases up to {escape(source)}")
        console.print(f"    the claim holds if  {escape(case.holds)}")
        if case.fails:
            console.print(f"    it fails if         {escape(case.fails)}  [dim](else inconclusive)[/]")
    if test.figure is not None and test.figure.says is not None:
        console.print(f"  the claim's figure: {escape(number(test.figure.says))} {escape(test.figure.unit)}")
    console.print()


def print_cases(cases: tuple[CaseOutcome, ...]) -> None:
    """Print each case with the values that its rule uses."""
    console = terminal.out()
    for letter, case in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", cases, strict=False):
        console.print(f"  exhibit {letter}  {WORD[case.holds]}  {escape(case.when)}")
        if case.exhibit:
            shown = ", ".join(f"{name} = {_short(plain(value))}" for name, value in case.exhibit.items())
            console.print(f"             [dim]{shown}[/]")
        if case.outside:
            console.print(f"             [dim]not counted: {escape(case.outside)}[/]")
        if case.until:
            console.print(f"             [dim]up to {escape(case.until)}[/]")
        if case.reason:
            console.print(f"             [dim]{escape(case.reason)}[/]")


def print_ruling(claim: Claim, ruling: Ruling) -> None:
    """Print exhibits, verdict, figure and the sentence to say."""
    from quizzes.claims.report import figure_line

    console = terminal.out()
    print_cases(ruling.cases)
    console.print(f"\nVERDICT  {verdict_word(ruling.verdict)}")
    if ruling.reason:
        console.print(f"  {escape(ruling.reason)}")
    if ruling.figure is not None:
        console.print(f"  {escape(figure_line(ruling.figure))}")
    if claim.fact is not None:
        print_fact(claim)
    if claim.discussion is not None and ruling.decided_by == "discussion":
        print_discussion(claim)
    elif ruling.wording:
        console.print(f"\n[bold]Say:[/] {escape(ruling.wording)}")


def print_fact(claim: Claim) -> None:
    from quizzes.claims.report import source_line

    assert claim.fact is not None
    terminal.out().print(f"  source: {escape(' '.join(claim.fact.says.split()))}")
    for label, text in (("right if", claim.fact.right_if), ("wrong if", claim.fact.wrong_if)):
        if text:
            terminal.out().print(f"  [bold]{label}[/] {escape(text)}")
    terminal.say(f"  [dim]{escape(source_line(claim))}[/]")


def print_discussion(claim: Claim) -> None:
    assert claim.discussion is not None
    console = terminal.out()
    said = claim.discussion
    for label, text in (("for", said.for_), ("against", said.against), ("better", said.better)):
        console.print(f"  [bold]{label:<8}[/] {escape(' '.join(text.split()))}")


def refuse_without_test(claim: Claim) -> None:
    if claim.test is None:
        raise terminal.Problem(
            f"{claim.id} ({claim.kind}) has no test: no experiment can decide it",
            f"prep claims show {claim.id}",
        )


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
