"""`prep claims vote`, `run` and `flip`: one claim at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from app.cli import terminal
from app.cli.claims import common
from app.cli.options import JsonOption, ScriptOption, SetOption, argument, option, parse_settings
from app.cli.quiz.dialogue import Dialogue, Quit, Skip
from app.cli.run import plain
from quizzes.claims.claim_list import Claims
from quizzes.experiments.registry import get
from quizzes.state import State, Vote

if TYPE_CHECKING:
    from quizzes.claims.claim import Claim
    from quizzes.claims.court import Ruling
VOTES = ("confirmed", "refuted", "depends", "outdated")


def vote(
    claim_id: Annotated[
        str | None, argument("Default: the next claim without your vote.", metavar="[ID]")
    ] = None,
    script: ScriptOption = None,
) -> None:
    """Vote on a claim, then run its test and read the verdict.

    \b
    Examples:
      prep claims vote
      prep claims vote S0-13
    """
    dialogue = Dialogue(script)
    state, error = State.open_or_in_memory()
    with state:
        if error is not None:
            terminal.note(f"[yellow]votes are not saved:[/] {terminal.literal(error)}")
        claims = common.load()
        claim = claims.claim(claim_id or _next(claims, state))
        try:
            _vote(claim, claims, state, dialogue)
        except (Quit, Skip):
            terminal.out().print("\nstopped; no vote was recorded")
            terminal.next_command(f"prep claims vote {claim.id}")


def _next(claims: Claims, state: State) -> str:
    """Return the first claim with a test or a dated fact and without a vote."""
    voted = {vote.claim_id for vote in state.votes() if vote.verdict}
    for entry in claims:
        if (entry.run or entry.fact) and entry.id not in voted:
            return entry.id
    raise terminal.Problem("you have voted on every claim", "prep claims list --verdict depends")


def _vote(claim: Claim, claims: Claims, state: State, dialogue: Dialogue) -> None:
    from quizzes.claims import verdict_cache
    from quizzes.claims.court import judge

    common.heading(claim)
    if claim.test is None and claim.fact is None:
        _read(dialogue, "no experiment can decide this. Say your view aloud, then press Enter")
        common.print_discussion(claim)
        terminal.next_command("prep claims vote")
        return
    if claim.test is not None:
        common.print_test(claim)
    said = _vote_of(dialogue)
    confidence = _confidence(dialogue)
    state.add(Vote(claim.id, said, confidence))  # before the test runs
    terminal.out().print()
    with common.court(claim.test.run if claim.test else claim.id) as run:
        ruling = judge(claim, run)
    verdict_cache.remember([ruling])
    common.print_ruling(claim, ruling)
    _score(claim, ruling, said, confidence, state)
    if claim.flip is not None:
        return terminal.next_command(f"prep claims flip {claim.id}", "to reverse the verdict")
    try:
        terminal.next_command(f"prep claims vote {_next(claims, state)}")
    except terminal.Problem:
        terminal.next_command("prep claims list")


def _read(dialogue: Dialogue, prompt: str, *, skips: bool = True) -> str:
    """Return a line in lower case, "" for a command. Raises Quit, and Skip if `skips`."""
    command, line = dialogue.command_or_text(f"{prompt} > ", hints=False, skips=skips)
    return line.lower() if command == "text" else ""


def _vote_of(dialogue: Dialogue) -> str:
    """Read a vote. Raises Quit, Skip."""
    while True:
        reply = _read(dialogue, "your vote: [c]onfirmed [r]efuted [d]epends [o]utdated")
        matches = [vote for vote in VOTES if reply and vote.startswith(reply)]
        if matches:
            return matches[0]
        terminal.out().print(f"[yellow]type one of: {', '.join(VOTES)}; one letter is enough; q quits[/]")


def _confidence(dialogue: Dialogue) -> int:
    """Read a confidence in percent. Raises Quit."""
    while True:
        reply = _read(dialogue, "confidence that the test agrees, 1-99 %", skips=False).rstrip("% ")
        if reply.isdecimal() and 1 <= int(reply) <= 99:
            return int(reply)
        terminal.out().print("[yellow]type a whole number from 1 to 99; q quits[/]")


def _score(claim: Claim, ruling: Ruling, said: str, confidence: int, state: State) -> None:
    """Score the vote against the verdict, if there is one."""
    from quizzes.claims.report import brier

    console = terminal.out()
    verdict = ruling.verdict
    if verdict not in VOTES:
        console.print("\nYour vote is not scored: the test decided nothing")
        return
    state.add(Vote(claim.id, said, confidence, verdict))
    hit = said == verdict
    word = "[green]hit[/]" if hit else "[red]miss[/]"
    console.print(
        f"\nYou: {said}, {confidence} %: {terminal.mark(hit)} {word}  "
        f"(Brier {brier(said, confidence, verdict):.2f}; 0 is best, a coin flip scores 0.25)"
    )


def run(claim_id: common.ClaimId, settings: SetOption = None, json: JsonOption = False) -> None:
    """Run a claim's test and print the verdict. --set changes arguments of the test.

    \b
    Examples:
      prep claims run S0-13
      prep claims run S0-13 --set slots=8
    """
    from quizzes.claims import verdict_cache
    from quizzes.claims.court import judge

    claim = common.load().claim(claim_id)
    common.refuse_without_test(claim)
    changed = _changed(claim, settings)
    tried = _with_arguments(claim, changed)
    with common.court(claim.test.run) as runs:
        ruling = judge(tried, runs)
    if not changed:
        verdict_cache.remember([ruling])
    if json:
        terminal.print_json(ruling.to_json())
    else:
        common.heading(claim)
        common.print_ruling(tried, ruling)
        if changed:
            terminal.next_command(f"prep claims run {claim.id}", "runs the original test")
        else:
            terminal.next_command(f"prep claims {'flip' if claim.flip else 'show'} {claim.id}")
    codes = {"inconclusive": terminal.INCONCLUSIVE, "skipped": terminal.ENVIRONMENT}
    if ruling.verdict in codes:
        raise typer.Exit(codes[ruling.verdict])


def _changed(claim: Claim, settings: list[str] | None) -> dict[str, Any]:
    """Return the arguments of --set. Raises Problem if the experiment of the claim's test rejects one."""
    from quizzes.claims import court

    changed = parse_settings(settings)
    assert claim.test is not None
    first = claim.test.cases[0].args
    with common.told():  # else blame the file, not --set
        court.arguments(claim, claim.test, first)
    try:
        court.arguments(claim, claim.test, {**first, **changed})
    except court.BrokenTest as error:
        raise terminal.Problem(
            f"--set: {error.__cause__}", f"prep experiments show {claim.test.run}"
        ) from None
    return changed


def _with_arguments(claim: Claim, changed: dict[str, Any]) -> Claim:
    """Return the claim with arguments that override those of every case."""
    if not changed or claim.test is None:
        return claim
    cases = [
        case if case.run else case.model_copy(update={"args": {**case.args, **changed}})
        for case in claim.test.cases
    ]
    return claim.model_copy(update={"test": claim.test.model_copy(update={"cases": cases})})


def flip(
    claim_id: common.ClaimId,
    settings: SetOption = None,
    witness: Annotated[bool, option("Show arguments that do it.", "--witness")] = False,
) -> None:
    """Find arguments that reverse the outcome of the first case.

    \b
    Examples:
      prep claims flip S0-13
      prep claims flip S0-13 --set lens=9,9,9,9
    """
    from quizzes.claims import court

    claim = common.load().claim(claim_id)
    common.refuse_without_test(claim)
    console = terminal.out()
    changed = _changed(claim, settings)
    if witness and claim.flip is None:
        raise terminal.Problem(f"{claim.id} has no witness", "try --set; it may be impossible")
    if witness:
        assert claim.flip is not None
        changed = dict(claim.flip.args)
    if not changed:
        _challenge(claim)
        return
    with common.court(claim.test.run) as runs:
        before, after, flipped = court.flip(claim, changed, runs)
    console.print(f"[dim]{', '.join(f'{name}={plain(value)}' for name, value in changed.items())}[/]")
    common.print_cases((before, after))
    word = "reversed" if flipped else "unchanged"
    console.print(f"\n{terminal.mark(flipped)} {escape(claim.test.cases[0].when)}: {word}")
    if not flipped:
        terminal.next_command(f"prep claims flip {claim.id} --set ...", "or --witness")
        raise typer.Exit(terminal.CHECKS_FAILED)
    terminal.next_command("prep claims vote", "the next claim")


def _challenge(claim: Claim) -> None:
    """Print the challenge and the arguments that can be changed."""
    console = terminal.out()
    common.heading(claim)
    test = claim.test
    assert test is not None
    first = test.cases[0]
    ask = claim.flip.ask if claim.flip else "Find arguments that reverse the outcome of the first case."
    console.print(f"{escape(' '.join(ask.split()))}\n")
    console.print(f"  rule       {escape(first.holds)}")
    values = {**get(test.run).check({**test.args, **first.args})}
    for name, value in values.items():
        console.print(f"  argument   [cyan]{name}[/]={plain(value)}")
    changeable = next(iter(claim.flip.args if claim.flip else values), "name")
    terminal.next_command(
        f"prep claims flip {claim.id} --set {changeable}=...", "repeat as often as you like"
    )
