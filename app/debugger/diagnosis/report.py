"""A diagnosis as HTML: the verdict with its evidence, and the tree with every question that was asked."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from engine.server.diagnosis.options import LOOKS
from engine.server.diagnosis.verdict import Diagnosis, Step
from prep_common.text import counted

MARKS = {True: ("yes", "● yes"), False: ("no", "○ no"), None: ("open", "? not known")}
"""Answer -> CSS class, words. "yes" keeps the cause possible."""

FIELDS = {
    "--request-log": "the request log",
    "--probe": "a probe",
    "--gateway": "the gateway",
    "--baseline": "a baseline",
}
"""Option of `prep diagnose` -> the field of the section."""


def as_html(found: Diagnosis) -> str:
    """Return the whole report. The branch of the named cause is open."""
    branches = [(branch, list(steps)) for branch, steps in groupby(found.path, lambda step: step.branch)]
    tree = "".join(_branch(found, branch, steps) for branch, steps in branches)
    return f'<div class="diagnosis">{_verdict(found)}{tree}{_open(found)}</div>'


def _verdict(found: Diagnosis) -> str:
    if found.candidates:
        return (
            f'<div class="verdict found" role="status"><b>Candidates: {escape(", ".join(found.candidates))}.</b>'
            f"<p>{escape(FIELDS.get(found.look, found.look))} tells them apart: {escape(LOOKS[found.look])}</p></div>"
        )
    if found.cause is None:
        return '<div class="verdict" role="status"><b>Nothing wrong: no cause fits these figures.</b></div>'
    evidence = "".join(f"<li>{escape(line)}</li>" for line in found.evidence)
    runner_up = ""
    if found.runner_up is not None:
        runner_up = f"<p>Runner-up: {escape(found.runner_up)}. Excluded: {escape(found.excluded_by)}</p>"
    return (
        f'<div class="verdict found" role="status"><b>Cause: {escape(found.cause)}.</b> {escape(found.meaning)}'
        f"<ul>{evidence}</ul>{runner_up}<p><b>Next step:</b> {escape(found.next_step)}</p></div>"
    )


def _branch(found: Diagnosis, branch: str, steps: Sequence[Step]) -> str:
    causes = list(dict.fromkeys(step.cause for step in steps))
    is_here = found.cause in causes
    unclear = [cause for cause in causes if any(step.cause is cause and step.holds is None for step in steps)]
    parts = [f"{escape(found.cause or '')} fits"] if is_here else []
    excluded = len(causes) - is_here - len([cause for cause in unclear if cause is not found.cause])
    if excluded:
        parts.append(f"{counted(excluded, 'cause')} excluded")
    if len(causes) - is_here - excluded:
        parts.append(f"{len(causes) - is_here - excluded} not known")
    rows = "".join(
        _row(
            step,
            is_first=place == 0 or steps[place - 1].cause is not step.cause,
            is_named=step.cause is found.cause,
        )
        for place, step in enumerate(steps)
    )
    return (
        f"<details{' open' if is_here else ''}><summary>{escape(branch)}<small>{', '.join(parts)}</small></summary>"
        f'<div class="rows"><table><tbody>{rows}</tbody></table></div></details>'
    )


def _row(step: Step, *, is_first: bool, is_named: bool) -> str:
    kind, words = MARKS[step.holds]
    name = escape(step.cause) if is_first else ""
    return (
        f'<tr class="{"named" if is_named else ""}"><th scope="row">{name}</th><td class="mark {kind}">{words}</td>'
        f"<td>{'<br>'.join(map(escape, step.replies))}</td></tr>"
    )


def _open(found: Diagnosis) -> str:
    """Return the causes that further inputs could confirm, by those inputs."""
    by_needs: dict[str, list[str]] = {}
    for each in found.cannot_exclude:
        needs = " or ".join(FIELDS.get(need.split()[0], need) for need in each.needs)
        by_needs.setdefault(needs, []).append(each.cause)
    lines = "".join(
        f"<li>{escape(', '.join(causes))}: give {escape(needs)}</li>" for needs, causes in by_needs.items()
    )
    return f"<details open><summary>Cannot exclude</summary><ul>{lines}</ul></details>" if lines else ""
