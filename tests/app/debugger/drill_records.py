"""Runs of a drill without a server: every request of the load, answered in time or late."""

from __future__ import annotations

from engine.server.load_client import Sent
from engine.server.scrape import Activity, Scrape
from interview.drills.drill import Load, Stage
from interview.drills.running import EVERY_S, Record, Tell
from interview.drills.work import requests

SETTING = "max-num-seqs"
GOOD = 5
"""The healthy value of drill D01."""


def run(stage: Stage, load: Load, tell: Tell) -> Record:
    """Return a run of drill D01: with more sequences than GOOD, requests are preempted and late."""
    if stage.set[SETTING] == "nonsense":
        raise ValueError("the server does not start: --max-num-seqs takes a number")
    tell("load: 1 of 2 sent")
    late = int(str(stage.set[SETTING])) > GOOD
    due = requests(load)
    gap = 0.4 if late else 0.01
    sent = [
        Sent(each.at, len(each.prompt), each.at + gap, each.at + 5 * gap, 5, [gap] * 4, name=each.name)
        for each in due
    ]
    scrapes = [
        Scrape(
            EVERY_S * number,
            {
                "num_requests_running": 8.0 if late else 4.0,
                "kv_cache_usage_perc": 0.9,
                "num_preemptions_total": 10.0 * number if late else 0.0,
            },
            {},
        )
        for number in range(24)
    ]
    samples = [Activity.between(one, two) for one, two in zip(scrapes, scrapes[1:], strict=False)]
    steps = [
        {
            "when": 0.1 * number,
            "num_running": 4,
            "num_scheduled_tokens": 4,
            "num_decode_tokens": 4,
            "empty": 0,
        }
        for number in range(40)
    ]
    log = [
        {
            "arrival": 100.0 + each.at, "prompt": len(each.prompt), "prefix": number, "prefix_len": 0, "output": 5,
            "finish_reason": "length", "QueueWaitMs": 1.0, "TTFTMs": 1000 * gap, "E2EMs": 5000 * gap,
            "num_preemptions": int(late),
        }
        for number, each in enumerate(due)
    ]  # fmt: skip
    more = {"num_preemptions_total": 230.0 if late else 0.0}
    total = Activity.between(scrapes[0], scrapes[-1])
    last_lines = "Engine 000: Running: 8 reqs"
    command = f"prep serve shop --{SETTING} {stage.set[SETTING]}"
    return Record(sent, due, 6.0, 100.0, total, samples, more, [steps], [log], last_lines, [command])
