"""The post-mortem of a session in Markdown: a template that the timeline fills; the learner writes the rest."""

from __future__ import annotations

from typing import Any

from interview.drills.drill import causes, find_drill
from interview.drills.figures import shown, signature


def post_mortem(events: list[dict[str, Any]]) -> str:
    """Return the document. Lines in italics are for the learner to write."""
    drill = find_drill(events[0]["drill"])
    by_kind = {event["event"]: event for event in events}
    guess, end = by_kind.get("hypothesis"), by_kind.get("end")
    lines = [f"# Post-mortem: {drill.title}", "", "## Impact", "", *_impact(by_kind), ""]
    lines += ["## Timeline", "", "| time | event |", "|---|---|"]
    lines += [f"| {event['at'][11:]} | {_sentence(event)} |" for event in events]
    lines += ["", "## Root cause", ""]
    lines.append(f"Stated during the incident: {causes()[guess['cause']]}" if guess else "None was stated.")
    if end is not None:
        lines += ["", f"Found in the debrief: {causes()[drill.cause]} {drill.debrief.say}"]
    if {"healthy", "faulty"} <= by_kind.keys():
        lines += ["", "## Evidence", "", "| figure | incident | before |", "|---|---|---|"]
        now, before = by_kind["faulty"]["figures"], by_kind["healthy"]["figures"]
        for name in signature(now, before):
            mark = " (decides)" if end is not None and name in drill.evidence else ""
            lines.append(f"| {name}{mark} | {shown(name, now[name])} | {shown(name, before[name])} |")
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
        named = ", ".join(event["evidence"])
        return f"Hypothesis {event['cause']}, {event['confidence']} % sure, because of {named}."
    if kind == "fix":
        return f"Fix: {event['fix']}. Objective {met}, {event['good']:.0%} good."
    return f"End: {event['cause'] + event['evidence'] + event['fix'] + event['looks']} of 100 points."
