"""The post-mortem of a session in Markdown: a template that the timeline fills; the learner writes the rest."""

from __future__ import annotations

from typing import Any

from interview.drills.debrief import compare, named, runs_of
from interview.drills.drill import causes, find_drill
from interview.drills.figures import signature

ESTIMATED = (
    "The server's quantiles of TTFT and ITL are estimates: each lies in the right bucket of a histogram of /metrics. "
    "Those of the clients are exact, so they can be below the server's."
)
"""Note under figures of both sides."""


def post_mortem(events: list[dict[str, Any]]) -> str:
    """Return the document. Lines in italics are for the learner to write."""
    drill = find_drill(events[0]["drill"])
    by_kind = {event["event"]: event for event in events}
    guesses = [event for event in events if event["event"] == "hypothesis"]
    end = by_kind.get("end")
    lines = [f"# Post-mortem: {drill.title}", "", "## Impact", "", *_impact(by_kind), ""]
    lines += ["## Timeline", "", "| time | event |", "|---|---|"]
    lines += [f"| {event['at'][11:]} | {_sentence(event)} |" for event in events]
    lines += ["", "## Root cause", ""]
    lines += [_stated(number, guess) for number, guess in enumerate(guesses)] or ["None was stated."]
    if end is not None:
        lines += ["", f"Found in the debrief: {causes()[drill.cause]} {drill.debrief.say}"]
    lines += _evidence(events, set() if end is None else set(drill.evidence))
    lines += [
        "",
        "## Detection",
        "",
        "_Which alert would have told you earlier, on which figure, at which limit?_",
    ]
    lines += ["", "## Lessons", "", "_What went well, what did not, where were we lucky?_", ""]
    lines += [
        "## Actions",
        "",
        "| action | owner | due |",
        "|---|---|---|",
        "| _prevent_ | | |",
        "| _detect_ | | |",
    ]
    return "\n".join(lines) + "\n"


def _stated(number: int, guess: dict[str, Any]) -> str:
    when = "Then" if number else "Stated first"
    return f"{when}, {guess['confidence']} % sure: {causes()[guess['cause']]}  "


def _evidence(events: list[dict[str, Any]], decides: set[str]) -> list[str]:
    runs = runs_of(events)
    if not {"yesterday", "today"} <= runs.keys():
        return []
    lines = ["", "## Evidence", "", f"| figure | {' | '.join(runs)} |", f"|---|{'---|' * len(runs)}"]
    shown = compare(runs, signature(runs["today"], runs["yesterday"]))
    for line in shown:
        mark = " (decides)" if line.figure in decides else ""
        lines.append(f"| {line.says}{mark} | {' | '.join(line.values)} |")
    if {"server", "client"} <= {line.figure.partition("_")[0] for line in shown}:
        lines += ["", ESTIMATED]
    return lines


def _impact(by_kind: dict[str, dict[str, Any]]) -> list[str]:
    if not {"healthy", "faulty"} <= by_kind.keys():
        return ["The drill was interrupted before the incident was measured."]
    now, before = by_kind["faulty"], by_kind["healthy"]
    return [
        f"{now['good']:.0%} of the requests met the objective, after {before['good']:.0%} the day before."
    ]


def _sentence(event: dict[str, Any]) -> str:
    met = "met" if event.get("is_met") else "missed"
    kind = event["event"]
    if kind == "start":
        return "The drill begins."
    if kind == "healthy":
        return f"Baseline: objective {met}, {event['good']:.0%} good."
    if kind == "faulty":
        return f"Incident: objective {met}, {event['good']:.0%} good."
    if kind == "look":
        return f"Looked at {event['name']} (cost {event['cost']})."
    if kind == "hypothesis":
        cause = causes()[event["cause"]].rstrip(".")
        because = f", because of {named(event['evidence'])}" if event["evidence"] else ""
        return f"Hypothesis, {event['confidence']} % sure: {cause}{because}."
    if kind == "fix":
        return f"Fix: {event['fix']}. Objective {met}, {event['good']:.0%} good."
    return f"End: {event['cause'] + event['evidence'] + event['fix'] + event['looks']} of 100 points."
