"""A drill that is over: the score, the debrief, what was seen, and the post-mortem as a file."""

from __future__ import annotations

from dataclasses import fields
from html import escape
from typing import Any

import streamlit as st

from app.debugger.drill.parts import Bar, bars, table
from app.debugger.page_frame import told
from interview.drills.debrief import compare, in_words, lost, runs_of
from interview.drills.drill import Drill, causes
from interview.drills.figures import signature
from interview.drills.post_mortem import post_mortem
from interview.drills.score import MOST, Score

PARTS = {"cause": "cause", "evidence": "evidence", "fix": "fix, verified", "looks": "cheap looks"}


def show(name: str, drill: Drill, events: list[dict[str, Any]]) -> bool:
    """Show a session from its events; return whether the learner leaves the page."""
    end = next((event for event in events if event["event"] == "end"), None)
    with st.container(horizontal=True, vertical_alignment="center"):
        st.download_button(
            "Download the post-mortem",
            post_mortem(events),
            f"drill-{name}.md",
            "text/markdown",
            type="primary",
            key="drill_download",
        )
        leaves = st.button("Another drill", key="drill_again")
    left, right = st.columns([1.4, 1], gap="large")
    with left:
        if end is None:
            st.info("This drill was interrupted: its runs are gone. The post-mortem has the timeline so far.")
        else:
            _score(Score(**{field.name: end[field.name] for field in fields(Score)}), lost(drill, events))
            _debrief(drill, events)
        _figures(drill, events, is_over=end is not None)
    with right:
        _fixes(drill, events)
        _looks(events)
    with st.expander("The post-mortem: complete the lines in italics"), st.container(key="drill_post_mortem"):
        st.markdown(_smaller(post_mortem(events)))
    return leaves


def _score(score: Score, reasons: list[str]) -> None:
    solved = "solved" if score.is_solved else "not solved: cause, evidence and fix belong together"
    st.html(
        f'<div class="drill-total" role="status">{score.total} of {sum(MOST.values())} · {solved}</div>'
        + bars(
            Bar(PARTS[part], points / most, "met" if points == most else "", f"{points}/{most}")
            for part, most in MOST.items()
            for points in [getattr(score, part)]
        )
    )
    spent = f"{score.seconds // 60}:{score.seconds % 60:02} min in all, looks for {score.cost}"
    brier = (
        ""
        if score.brier is None
        else f" · Brier score of your first statement {score.brier:.2f} (0 is best, 0.25 is a coin)"
    )
    st.caption(told(" · ".join([f"{spent}{brier}", *reasons])))


def _debrief(drill: Drill, events: list[dict[str, Any]]) -> None:
    known, runs = causes(), runs_of(events)
    guesses = [event for event in events if event["event"] == "hypothesis"]
    yours = "" if guesses else "<p>You stated no cause.</p>"
    for number, guess in enumerate(guesses):
        is_right = guess["cause"] == drill.cause
        mark = '<span class="yes">✓ right</span>' if is_right else '<span class="no">✗</span>'
        said = "Then you said" if number else "You said"
        yours += (
            f"<p><b>{said}</b> ({guess['confidence']} % sure): {escape(known[guess['cause']])} {mark}<br>"
            f"because of {escape('; '.join(in_words(line, runs) for line in compare(runs, guess['evidence'])))}</p>"
        )
    st.header("Debrief")
    st.html(
        f'<div class="drill-verdict">{yours}<p><b>It was:</b> {escape(known[drill.cause])}</p>'
        f"<p>{escape(drill.debrief.say)}</p><p><b>Not this:</b> {escape(known[drill.debrief.runner_up])}<br>"
        f"<b>Ask:</b> {escape(drill.debrief.question)}</p></div>"
    )


def _figures(drill: Drill, events: list[dict[str, Any]], *, is_over: bool) -> None:
    """Show the figures that differ from yesterday's: those that decide are marked once the drill is over."""
    runs = runs_of(events)
    if not {"yesterday", "today"} <= runs.keys():
        return
    decides = list(drill.evidence) if is_over else []
    others = [name for name in signature(runs["today"], runs["yesterday"]) if name not in decides]
    st.header("What differs from yesterday")
    st.html(table(compare(runs, [*decides, *others]), runs, decides))


def _fixes(drill: Drill, events: list[dict[str, Any]]) -> None:
    st.header("Good requests")
    runs = [event for event in events if event["event"] in ("healthy", "faulty", "fix")]
    names = {"healthy": "yesterday", "faulty": "today"}
    st.html(
        bars(
            [
                Bar(
                    names.get(run["event"]) or run["fix"],
                    run["good"],
                    "yesterday" if run["event"] == "healthy" else "met" if run["is_met"] else "",
                )
                for run in runs
            ],
            mark=drill.objective.share,
            kind="fixes",
        )
    )
    st.caption(told(f"Objective (line): {drill.objective.in_words}"))


def _looks(events: list[dict[str, Any]]) -> None:
    st.header("Your looks")
    looks = [event for event in events if event["event"] == "look"]
    words = ", ".join(f"{look['name']} ({look['cost']})" for look in looks)
    st.caption(words or "none")


def _smaller(text: str) -> str:
    """Return Markdown with headings two levels lower: the page has one of the first level."""
    lines = text.splitlines()
    return "\n".join(
        f"##{line}" if line.startswith("#") else told(line) if not line.startswith(("_", "|")) else line
        for line in lines
    )
