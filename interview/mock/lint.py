"""Check scenarios beyond their schema: `python -m interview.mock.lint [--play] [--runs] [ID...]`, `prep mock lint`.

every text renders and every expression evaluates for 20 seeds; oracles agree with expected values
what needs a run is run for 2 seeds: goals and refutations come out as declared, picks at their ends run
--play: an excellent candidate walks whole sessions of 20 and 45 minutes
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

from interview.mock.drawn import Drawn, draw_scenario
from interview.mock.scenario import AXES, Pick, Scenario, Step
from interview.mock.scenario_list import Scenarios, load_scenarios
from prep_common.text import counted
from quizzes.experiments.registry import Inconclusive, NeedsHardware
from quizzes.experiments.runner import RunFailed, Runner
from quizzes.lint import agree, ask_oracle

SEEDS = range(20)
RUN_SEEDS = range(2)
SLOWEST = 10.0
"""Seconds of an experiment."""


def lint(scenario: Scenario, runner: Runner | None, run_seeds: range = RUN_SEEDS) -> Iterator[str]:
    """Yield problems. runner: also run what a scenario runs, for `run_seeds`."""
    yield from _coverage(scenario)
    yield from _links(scenario)
    for seed in SEEDS:
        try:
            drawn = draw_scenario(scenario, seed)
            yield from (f"seed {seed}: {problem}" for problem in _texts(drawn))
            if runner is not None and seed in run_seeds:
                yield from (f"seed {seed}: {problem}" for problem in _runs(drawn, runner))
        except Exception as error:
            yield f"seed {seed}: {type(error).__name__}: {error}"
            return


def _coverage(scenario: Scenario) -> Iterator[str]:
    observed: list[str] = [axis for step in scenario.main_line for axis in step.axes]
    for axis in AXES:
        least = 2 if axis in ("correctness", "quantification") else 1
        if observed.count(axis) < least:
            yield f"the main line observes {axis} {observed.count(axis)} times; it needs {least}"
    if sum(step.after is not None for step in scenario.steps) < 4:
        yield "it needs four follow-ups or more"
    core = next(step for step in scenario.main_line if step.stage == "core")
    if core.form == "prose" and sum(point.must for point in core.keypoints if point.probes) < 2:
        yield "two key points of the core or more are must-points with a probe"
    if not any(step.picks or step.canvas for step in scenario.steps):
        yield "no experiment uses the candidate's own numbers"


def _links(scenario: Scenario) -> Iterator[str]:
    from lessons.course.lesson_files import labs, lessons
    from quizzes.claims.claim_list import load_claims
    from quizzes.question_bank import load_bank

    python_labs = {lab.number for lab in labs() if lab.language == "python"}
    known = {f"L{lesson.number}" for lesson in lessons()} | {lab.number for lab in labs()}
    known |= set(load_bank().entries) | set(load_claims().entries)
    for step in scenario.steps:
        if step.code and step.code.lab and step.code.lab not in python_labs:
            yield f"step {step.id}: no lab in Python is called {step.code.lab}"
        yield from (
            f"step {step.id}: nothing to learn is called {name}" for name in step.learn if name not in known
        )


def _texts(drawn: Drawn) -> Iterator[str]:
    drawn.text(drawn.scenario.brief)
    for clarification in drawn.scenario.clarifications:
        drawn.text(clarification.answer)
        for word in clarification.words:
            if drawn.clarify(f"What is the {word}?") is None:
                yield f"the clarification {clarification.id} is not found by {word!r}"
    for step in drawn.scenario.steps:
        for text in (*step.say, step.rescue, step.five):
            drawn.text(text)
        drawn.key_points(step)
        if step.answers or step.choices:
            yield from _expected(drawn, step)


def _expected(drawn: Drawn, step: Step) -> Iterator[str]:
    instance = drawn.question(step)
    for choice in step.choices:
        instance.render(choice.text)
    instance.run_args()
    if step.experiment is not None:
        return
    expected = instance.expected()
    if (
        step.choices
        and len(expected["choice"]) != 1
        and not any(isinstance(c.right, str) for c in step.choices)
    ):
        yield f"step {step.id}: {len(expected['choice'])} options are right"
    yield from _oracles(drawn, step, expected)


def _oracles(drawn: Drawn, step: Step, expected: dict[str, Any]) -> Iterator[str]:
    for name, oracle in step.oracle.items():
        second = ask_oracle(oracle, drawn.question(step))
        if not agree(expected[name], second):
            yield f"step {step.id}: {name} is {expected[name]}, its oracle says {second}"


def _runs(drawn: Drawn, runner: Runner) -> Iterator[str]:
    for step in drawn.scenario.steps:
        if step.experiment is not None:
            yield from _experiment(drawn, step, runner)
        elif step.canvas is not None:
            yield from _canvas(drawn, step, runner)
        elif step.reverse is not None:
            yield from _reverse(drawn, step, runner)


def _run(runner: Runner, name: str, args: dict[str, Any]) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        outcome = runner.run(name, args)
    except (Inconclusive, NeedsHardware, RunFailed) as error:
        raise ValueError(f"{name} with {args}: {error}") from None
    if not outcome.cached and outcome.seconds > SLOWEST:
        raise ValueError(f"{name} takes {time.perf_counter() - began:.0f} s; {SLOWEST:g} s is the limit")
    return outcome.result


def _experiment(drawn: Drawn, step: Step, runner: Runner) -> Iterator[str]:
    assert step.experiment is not None
    kept = dict(drawn.said.get(step.id, {}))
    outcomes: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for picks in _ends(step.picks):
        drawn.said[step.id] = {**kept, **picks}
        instance = drawn.question(step)
        result = _run(runner, step.experiment.run, instance.run_args())
        expected = instance.expected(result)
        if step.choices and not expected["choice"]:
            yield f"step {step.id}: no option is right with {picks}"
        drawn.text(step.explain, result=result)
        yield from _oracles(drawn, step, expected)
        outcomes.append((picks, expected))
    drawn.said[step.id] = kept
    yield from free_choice(step, outcomes)


def free_choice(step: Step, outcomes: list[tuple[dict[str, Any], dict[str, Any]]]) -> Iterator[str]:
    """Yield why the candidate's own numbers make a poor question. outcomes: picks, and the right answers with them."""
    if not step.picks:
        return
    if all(expected == outcomes[0][1] for _, expected in outcomes):
        yield f"step {step.id}: the picks make no difference, the answer is always {outcomes[0][1]}"
    for name in (answer.id for answer in step.answers):
        if all(expected[name] in picks.values() for picks, expected in outcomes):
            yield f"step {step.id}: {name} is the pick itself, at its start and at both ends"


def _ends(picks: list[Pick]) -> list[dict[str, Any]]:
    """Return the start, and both ends of every pick together."""
    if not picks:
        return [{}]
    starts = {pick.id: _start(pick) for pick in picks}
    low = {pick.id: pick.options[0] if pick.options else _number(pick, pick.lo) for pick in picks}
    high = {pick.id: pick.options[-1] if pick.options else _number(pick, pick.hi) for pick in picks}
    return [starts, low, high]


def _start(pick: Pick) -> Any:
    if pick.start is None:
        return pick.options[0] if pick.options else _number(pick, pick.lo)
    return pick.start


def _number(pick: Pick, value: float | None) -> Any:
    assert value is not None
    return int(value) if pick.whole else value


def _canvas(drawn: Drawn, step: Step, runner: Runner) -> Iterator[str]:
    canvas = step.canvas
    assert canvas is not None
    args = drawn.value(canvas.run.args)
    rounds = [(canvas.solution, {}), *((change.solution, change.args) for change in canvas.changes)]
    for number, (solution, changed) in enumerate(rounds):
        values = drawn.value(solution)
        result = _run(runner, canvas.run.run, {**args, **values, **drawn.value(changed)})
        drawn.text(canvas.formula, **values)
        drawn.value(canvas.cost, result=result, **values)
        for goal in canvas.goals:
            if re.fullmatch(r"[\d.,]+", drawn.text(goal.shows, result=result, **values)):
                yield f"step {step.id}: the figure of {goal.say!r} has no unit"
            if not drawn.holds(goal.holds, result=result, **values):
                shown = drawn.text(goal.shows, result=result, **values)
                yield f"step {step.id}: solution {number} misses {drawn.text(goal.say)!r} ({shown})"
    starts = {pick.id: pick.start for pick in canvas.fields}
    result = _run(runner, canvas.run.run, {**args, **starts})
    if all(drawn.holds(goal.holds, result=result, **starts) for goal in canvas.goals):
        yield f"step {step.id}: the design that it starts with meets all goals"
    for values in _ends(canvas.fields)[1:]:
        _run(runner, canvas.run.run, {**args, **values})


def _reverse(drawn: Drawn, step: Step, runner: Runner) -> Iterator[str]:
    reverse = step.reverse
    assert reverse is not None
    drawn.text(reverse.answer)
    refuted = []
    for test in reverse.tests:
        result = _run(runner, test.run.run, drawn.value(test.run.args))
        drawn.text(test.shows, result=result)
        drawn.text(step.explain, result=result)
        refuted.append(drawn.holds(test.refutes, result=result))
    if not 1 <= sum(refuted) < len(refuted):
        yield f"step {step.id}: {sum(refuted)} of {len(refuted)} experiments refute the answer"
    if sum(choice.right is not False for choice in reverse.flaw) != 1:
        yield f"step {step.id}: exactly one flaw is right"


def play(scenarios: Scenarios, name: str, runner: Runner, minutes: int, persona: str = "excellent") -> Any:
    """Let a scripted candidate walk a whole session in a folder of its own. Return the talk."""
    import os
    import tempfile
    from unittest.mock import patch

    from interview.mock.candidates import Candidate
    from interview.mock.session import Session
    from interview.mock.talk import Spec, with_rules

    entry = scenarios.entries[name]
    session_id = f"{name}-{persona}-{minutes}"
    spec = with_rules(Spec(session_id, entry.role, entry.level, minutes, 7, (name,), ""))
    with tempfile.TemporaryDirectory() as home, patch.dict(os.environ, {"PREP_HOME": home}):
        with Session.start(spec, scenarios) as session:
            Candidate(persona, session, runner).hold()
        return session.talk


def main(arguments: list[str] | None = None) -> int:
    """Check scenarios and print what is wrong. Return 1 if something is, else 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ids", nargs="*")
    parser.add_argument("--play", action="store_true", help="walk whole sessions, too")
    parser.add_argument("--no-runs", action="store_true", help="leave out everything that runs an experiment")
    given = parser.parse_args(arguments)
    scenarios = load_scenarios()
    problems = [str(problem) for problem in scenarios.problems]
    names = [name for name in scenarios.entries if not given.ids or name in given.ids]
    problems += [f"no scenario is called {name}" for name in given.ids if name not in scenarios]
    with Runner() as runner:
        for name in names:
            faults = list(lint(scenarios.scenario(name), None if given.no_runs else runner))
            if given.play and not faults:
                for minutes in (20, 45):
                    talk = play(scenarios, name, runner, minutes)
                    values = {axis: [e.value for e in talk.evidence if e.axis == axis] for axis in AXES}
                    means = {axis: round(sum(v) / len(v), 1) for axis, v in values.items() if v}
                    steps = " ".join(asked.key.partition("/")[2] for asked in talk.asked if "/" in asked.key)
                    print(f"{name} {minutes} min: {means}\n    {steps}")
                    runs = sum("result" in asked.run or asked.form == "incident" for asked in talk.asked)
                    if runs < 2:
                        faults.append(f"{minutes} minutes hold {runs} experiments; two are needed")
                    low = [axis for axis, mean in means.items() if mean < 4]
                    faults += [
                        f"{minutes} min: an excellent candidate has {means[axis]} on {axis}" for axis in low
                    ]
            problems += [f"{name}: {problem}" for problem in dict.fromkeys(faults)]
            print(f"{name}: {counted(len(faults), 'problem')}")
    print("\n".join(problems))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
