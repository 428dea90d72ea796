"""An incident: a drill of interview/drills, answered from its recorded figures, or run live on this machine.

The candidate takes looks, at a cost, states a cause and the figures that decide, and repairs. The front end runs the
servers; without a run, looks show the figures that `prep drill check --write` keeps.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from interview.mock.case import Case, look_words
from interview.mock.drawn import Drawn
from interview.mock.scenario import Step
from interview.mock.talk import Asked, Conversation, Heard, Talk
from interview.mock.timeline import Timeline
from interview.mock.turns import Menu, RunDrill, Turn

MOST_LOOKS = 8
MOST_FIXES = 2
LIVE, KNOWN = "live", "cause"
"""Actions of the menu of looks: run the drill here; name the cause."""
RUN_S = 25
"""Usual time of the two runs, in seconds."""


def incident_step(talk: Talk, drawn: Drawn, step: Step, asked: Asked) -> Conversation:
    """Let the candidate look, at a cost, name the cause and repair; every repair runs the same load again."""
    case = Case.of(step)
    timeline = Timeline(talk, case)
    looked = yield from _look_around(talk, case, asked, timeline)
    heard = yield talk.turn(asked, "cause", "So what is it, and which figures tell?", case.hypothesis(looked))
    asked.replies = {"looks": looked, **talk.hear(asked, heard), "live": case.is_live}
    timeline.hypothesis(asked.replies)
    fixes = tuple(drawn.shuffled(step, case.fixes))
    asked.replies["fixes"] = yield from _repair(talk, case, asked, fixes, timeline)
    timeline.end(case.judge(talk, asked, step.axes))
    asked.replies["events"] = timeline.events
    talk.preface = f"{talk.preface}\n\n{asked.explain}".strip()


def _look_around(
    talk: Talk, case: Case, asked: Asked, timeline: Timeline
) -> Generator[Turn, Heard, list[str]]:
    looked: list[str] = []
    say = f"{asked.say}\n\n{case.opening}"
    for count in range(MOST_LOOKS + 1):
        options = [(KNOWN, "I know the cause")]
        if not case.is_live:
            options.append((LIVE, f"Run it here, about {RUN_S} s; looks and repairs then show this machine"))
        if len(looked) < MOST_LOOKS:
            options += [(name, look_words(name)) for name in case.looks_left(looked)]
        menu = Menu(tuple(options), (KNOWN, LIVE, *case.all_looks))
        heard = yield talk.turn(asked, f"look{count}", say, menu, began=count == 0)
        pick = talk.hear(asked, heard)["pick"]
        if pick == KNOWN:
            break
        if pick == LIVE:
            result = yield from _run_live(talk, case, asked, f"run{count}", 0)
            if result is not None:
                case.take(result)
                timeline.runs()
            say = "\n\n".join([case.opening, *(case.shown(name) for name in looked)])
            continue
        looked.append(pick)
        timeline.look(pick)
        say = case.shown(pick)
    return looked


def _repair(
    talk: Talk, case: Case, asked: Asked, options: tuple[tuple[str, str], ...], timeline: Timeline
) -> Generator[Turn, Heard, list[str]]:
    """Return the numbers of the fixes tried, at most two."""
    fixes: list[str] = []
    say = "What do you change? Then we see the same load again."
    while len(fixes) < MOST_FIXES:
        left = tuple(option for option in options if option[0] not in fixes)
        menu = Menu(left, tuple(name for name, _ in options))
        heard = yield talk.turn(asked, f"fix{len(fixes)}", say, menu)
        fixes.append(talk.hear(asked, heard)["pick"])
        if case.is_live:
            result = yield from _run_live(talk, case, asked, f"run.{fixes[-1]}", int(fixes[-1]))
            case.good |= {} if result is None else result["good"]
        timeline.fix(fixes[-1])
        rows = list(case.rows_of(fixes[-1:]))
        talk.chart = {"name": f"drill {case.drill.code}", "args": {}, "rows": rows}
        if case.drill.is_met(case.good[fixes[-1]]):
            break
        say = "That was not it. One more try."
    return fixes


def _run_live(
    talk: Talk, case: Case, asked: Asked, label: str, fix: int
) -> Generator[Turn, Heard, dict[str, Any] | None]:
    """Have the front end run it. Return the result, or None if it failed: recorded figures then stand for it."""
    say = "I'll start the servers." if not fix else "I'll apply it and run the same load."
    heard = yield talk.turn(asked, label, say, RunDrill(case.drill.id, {"fix": fix}))
    if "result" in heard.reply:
        return dict(heard.reply["result"])
    talk.preface = f"The run failed ({heard.reply['failed']}). The recorded figures stand for it."
    return None
