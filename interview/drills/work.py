"""Draw the requests of a drill's load. The same load gives the same requests in all runs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from engine.server.load_client import Due, prompt_ids
from engine.sim.workload import Lengths, SimRequest, Workload
from interview.drills.drill import Group, Load
from interview.drills.quality import Question, question

VOCABULARY = 1000
"""Prompts consist of token ids below this one."""
APART = 10_000
"""Numbers of requests and prefixes of two groups differ, so they share no prompt."""
WORDS = (
    "order parcel size colour refund shop price box return label card code date email phone street town river "
    "table lamp chair green blue red small large cheap new old fast slow help need want sent lost found"
).split()


def requests(load: Load) -> list[Due]:
    """Return all requests in order of arrival."""
    all_due = [
        due
        for number, (name, group) in enumerate(load.groups.items())
        for due in _of_group(load, name, group, number)
    ]
    return sorted(all_due, key=lambda due: due.at)


def _of_group(load: Load, name: str, group: Group, number: int) -> list[Due]:
    seconds = min(group.seconds or load.seconds, load.seconds - group.start_s)
    workload = Workload(
        max(1, round(group.rate * seconds)),
        group.rate,
        Lengths.parse(group.prompt),
        Lengths.parse(group.output),
        group.arrivals,
        group.cv,
        group.num_prefixes,
        group.prefix_len,
        seed=load.seed + 100 * number,
    )
    shared = list(load.groups).index(group.prefixes_of or name)
    return [_due(request, name, group, number, shared) for request in workload]


def _due(drawn: SimRequest, name: str, group: Group, number: int, shared: int) -> Due:
    prefix = drawn.prefix_id + shared * APART if drawn.prefix_id >= 0 else -1
    own = replace(drawn, index=drawn.index + number * APART, prefix_id=prefix)
    body = dict(group.body)
    if group.text:
        rng = Random(f"words-{own.index}")
        words = " ".join(rng.choice(WORDS) for _ in range(own.prompt_len))
        body["prompt"] = group.frame.replace("{}", words)
    answer = ""
    if group.questions:
        case = question(own.prompt_len, own.index)
        body["prompt"], answer = case.prompt, case.answer
    return Question(
        group.start_s + own.arrival,
        prompt_ids(own, VOCABULARY),
        own.output_len,
        body=body,
        headers=group.headers,
        patience_s=group.patience_s,
        name=name,
        attempts=group.attempts,
        backoff_s=group.backoff_s,
        answer=answer,
    )
