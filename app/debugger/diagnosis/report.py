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


def as_html(diagnosis: Diagnosis) -> str:
    """Return the whole report. The branch of the named cause is open."""
    branches = [(branch, list(steps)) for branch, steps in groupby(diagnosis.path, lambda step: step.branch)]
    tree = "".join(_branch(diagnosis, branch, steps) for branch, steps in branches)
    return f'<div class="diagnosis">{_verdict(diagnosis)}{tree}{_open(diagnosis)}</div>'


def _verdict(diagnosis: Diagnosis) -> str:
    if diagnosis.candidates:
        return (
            f'<div class="verdict found" role="status"><b>Candidates: {escape(", ".join(diagnosis.candidates))}.</b>'
            f"<p>{escape(FIELDS.get(diagnosis.look, diagnosis.look))} tells them apart: "
            f"{escape(LOOKS[diagnosis.look])}</p></div>"
        )
    if diagnosis.cause is None:
        return '<div class="verdict" role="status"><b>Nothing wrong: no cause fits these figures.</b></div>'
    evidence = "".join(f"<li>{escape(line)}</li>" for line in diagnosis.evidence)
    runner_up = ""
    if diagnosis.runner_up is not None:
        runner_up = (
            f"<p>Runner-up: {escape(diagnosis.runner_up)}. Excluded: {escape(diagnosis.excluded_by)}</p>"
        )
    return (
        f'<div class="verdict found" role="status"><b>Cause: {escape(diagnosis.cause)}.</b> {escape(diagnosis.meaning)}'
        f"<ul>{evidence}</ul>{runner_up}<p><b>Next step:</b> {escape(diagnosis.next_step)}</p></div>"
    )


def _branch(diagnosis: Diagnosis, branch: str, steps: Sequence[Step]) -> str:
    causes = list(dict.fromkeys(step.cause for step in steps))
    is_here = diagnosis.cause in causes
    unclear = [cause for cause in causes if any(step.cause is cause and step.holds is None for step in steps)]
    parts = [f"{escape(diagnosis.cause or '')} fits"] if is_here else []
    excluded = len(causes) - is_here - len([cause for cause in unclear if cause is not diagnosis.cause])
    if excluded:
        parts.append(f"{counted(excluded, 'cause')} excluded")
    if len(causes) - is_here - excluded:
        parts.append(f"{len(causes) - is_here - excluded} not known")
    rows = "".join(
        _row(
            step,
            is_first=place == 0 or steps[place - 1].cause is not step.cause,
            is_named=step.cause is diagnosis.cause,
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


def _open(diagnosis: Diagnosis) -> str:
    """Return the causes that further inputs could confirm, by those inputs."""
    by_needs: dict[str, list[str]] = {}
    for step in diagnosis.cannot_exclude:
        needs = " or ".join(FIELDS.get(need.split()[0], need) for need in step.needs)
        by_needs.setdefault(needs, []).append(step.cause)
    lines = "".join(
        f"<li>{escape(', '.join(causes))}: give {escape(needs)}</li>" for needs, causes in by_needs.items()
    )
    return f"<details open><summary>Cannot exclude</summary><ul>{lines}</ul></details>" if lines else ""
