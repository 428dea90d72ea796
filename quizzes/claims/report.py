"""Rulings in words: what was tested, what it showed, how a vote did, what a whole run found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from quizzes.claims.claim import Claim
from quizzes.claims.court import CaseOutcome, FigureOutcome, Ruling

VERDICTS = ("confirmed", "refuted", "depends", "inconclusive", "skipped")
IN_WORDS = {True: "holds", False: "fails", None: "undecided"}


def ruling_lines(claim: Claim, ruling: Ruling) -> list[str]:
    """A ruling with its exhibits, plain."""
    verdict = ruling.verdict or "for discussion"
    lines = [f"{claim.id}  {verdict.upper()}  [{claim.kind}, {claim.topic}]  {' '.join(claim.claim.split())}"]
    lines += [f"    {line}" for case in ruling.cases for line in case_lines(case)]
    if ruling.figure is not None:
        lines.append(f"    {figure_line(ruling.figure)}")
    if ruling.reason:
        lines.append(f"    {ruling.verdict}: {ruling.reason}")
    if claim.fact is not None:
        lines += [f"    fact: {' '.join(claim.fact.says.split())}", f"    source: {source_line(claim)}"]
    if ruling.wording:
        lines.append(f"    say: {ruling.wording}")
    return lines


def case_lines(case: CaseOutcome) -> list[str]:
    """Condition, outcome, exhibits."""
    lines = [f"{IN_WORDS[case.holds]:<9} {case.when}"]
    if case.exhibit:
        lines.append(
            " " * 10 + ", ".join(f"{name} = {number(value)}" for name, value in case.exhibit.items())
        )
    if case.reason:
        lines.append(" " * 10 + case.reason)
    return lines


def figure_line(figure: FigureOutcome) -> str:
    """The right number beside the claimed one."""
    unit = f" {figure.unit}" if figure.unit else ""
    says = "" if figure.says is None else f"; the claim says {number(figure.says)}{unit}"
    return f"figure: {number(figure.value)}{unit}{says}"


def source_line(claim: Claim) -> str:
    if claim.fact is None:
        return ""
    source = claim.fact.source
    parts = [
        source.ref,
        source.version and f"version {source.version}",
        source.as_of and f"as of {source.as_of}",
    ]
    return ", ".join(part for part in [*parts, source.url] if part)


def number(value: Any) -> str:
    """For the eye: thousands separated, floats short."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, list):
        shown = ", ".join(number(each) for each in value[:8])
        return f"[{shown}{', ...' if len(value) > 8 else ''}]"
    return str(value)


def counts(rulings: Iterable[Ruling]) -> str:
    """ "212 claims: 120 confirmed, 60 refuted ..."."""
    rulings = list(rulings)
    by_verdict = Counter(ruling.verdict or "for discussion" for ruling in rulings)
    parts = [f"{by_verdict[name]} {name}" for name in (*VERDICTS, "for discussion") if by_verdict[name]]
    return f"{len(rulings)} claims: {', '.join(parts) or 'none'}"


def table(rulings: Iterable[Ruling], kinds: dict[str, str]) -> list[tuple[str, ...]]:
    """Rows of verdicts by kind, the last one the sum. `kinds`: claim id -> kind."""
    counted: dict[str, Counter[str]] = {}
    for ruling in rulings:
        counted.setdefault(kinds[ruling.id], Counter())[ruling.verdict or "for discussion"] += 1
    columns = (*VERDICTS, "for discussion")
    rows = [
        (kind, *(str(each[c] or "") for c in columns), str(each.total()))
        for kind, each in sorted(counted.items())
    ]
    total: Counter[str] = sum(counted.values(), Counter())
    return [*rows, ("all", *(str(total[c] or "") for c in columns), str(total.total()))]


def brier(vote: str, confidence: int, verdict: str) -> float:
    """(probability given to "I am right" - what came true) squared: 0 is best, 0.25 is a coin, 1 is worst."""
    return (confidence / 100 - (vote == verdict)) ** 2


def markdown(claims: Iterable[tuple[Claim, Ruling]], command: str) -> str:
    """What the guides get wrong or leave open, with the right number: a page to read, made by a run."""
    pairs = list(claims)
    found = Counter(ruling.verdict for _, ruling in pairs)
    lines = [
        "# What the court found",
        "",
        f"Made by `{command}`; no verdict of a test is typed. {len(pairs)} claims: "
        + ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if found[verdict])
        + ".",
        "",
        "`prep claims show ID` shows the test, `prep claims run ID` runs it, `prep claims flip ID` turns it over.",
    ]
    for verdict in ("refuted", "depends"):
        lines += [
            "",
            f"## {verdict.capitalize()}",
            "",
            "| | claim | it says | found | in an interview |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(claim, ruling) for claim, ruling in pairs if ruling.verdict == verdict]
    confirmed = [claim.id for claim, ruling in pairs if ruling.verdict == "confirmed"]
    lines += ["", "## Confirmed", "", ", ".join(confirmed) or "none", ""]
    return "\n".join(lines)


def _row(claim: Claim, ruling: Ruling) -> str:
    figure = ruling.figure
    unit = f" {figure.unit}" if figure and figure.unit else ""
    says = "" if figure is None or figure.says is None else f"{number(figure.says)}{unit}"
    value = "" if figure is None else f"{number(figure.value)}{unit}"
    wording = ruling.wording or (claim.fact.says if claim.fact else "")
    cells = [claim.id, claim.claim, says, value, wording]
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
