"""Drills about tenants, ranks and replicas: their figures, and the parts of a stage that only they have."""

from __future__ import annotations

import subprocess
import sys
from zlib import crc32

import pytest

from engine.server.load_client import Due
from engine.server.scrape import Activity, Scrape
from interview.drills.commands import options
from interview.drills.drill import Change, Group, Hook, Load, Special, find_drill
from interview.drills.platform_faults import NEIGHBOUR
from interview.drills.platform_figures import BLOCK, foreign_hits, platform_figures
from interview.drills.running import Record
from interview.drills.work import requests

SHARED, OWN = list(range(100, 120)), list(range(200, 220))


def record(due: list[Due], hits: list[tuple[list[int], int]], lines: str = "") -> Record:
    """Return a run: its requests, and prompt and cached tokens of each line of the log."""
    log = [
        {"arrival": number, "prefix": crc32(repr(prompt[:BLOCK]).encode()) & 0x7FFF, "prefix_len": hit}
        for number, (prompt, hit) in enumerate(hits)
    ]
    nothing = Activity.between(Scrape(0, {}, {}), Scrape(1, {}, {}))
    return Record([], due, 1.0, 0.0, nothing, [nothing], {}, [], [log], lines)


def test_a_hit_is_foreign_if_the_tenant_never_sent_the_prefix() -> None:
    due = [Due(0, SHARED, 1, name="a"), Due(1, SHARED, 1, name="b"), Due(2, SHARED, 1, name="b")]
    due += [Due(3, OWN, 1, name="a"), Due(4, OWN, 1, name="a")]
    own = [(OWN, 0), (OWN, 16)]
    assert foreign_hits(record(due, [(SHARED, 0), (SHARED, 16), (SHARED, 16), *own])) == 1
    assert foreign_hits(record(due, [(SHARED, 0), (SHARED, 0), (SHARED, 16), *own])) == 0


def test_the_gap_of_ranks_is_that_of_their_own_times() -> None:
    lines = "\n".join(
        f"rank {rank}: {ms} ms of a step outside of all-reduce"
        for rank, ms in ((0, 4.0), (1, 29.0), (0, 5.0))
    )
    assert platform_figures(record([], [], lines))["rank_gap_ms"] == pytest.approx(24.5)


def test_a_group_sends_the_prefixes_of_another_one() -> None:
    groups = {
        "a": Group(rate=20, prompt="40", output="1", num_prefixes=2, prefix_len=32),
        "b": Group(rate=20, prompt="40", output="1", num_prefixes=2, prefix_len=32, prefixes_of="a"),
        "c": Group(rate=20, prompt="40", output="1", num_prefixes=2, prefix_len=32),
    }
    due = requests(Load(seconds=1, groups=groups))
    sent = {name: {tuple(each.prompt[:32]) for each in due if each.name == name} for name in groups}
    assert sent["a"] == sent["b"] and not sent["a"] & sent["c"]
    assert len({tuple(each.prompt) for each in due}) == len(due)


def test_a_change_of_the_last_server_leaves_the_others_as_they_are() -> None:
    drill = find_drill("bad-canary")
    stage, _ = drill.changed(Change(last=Special(hook=Hook(name="export_in_the_step"))))
    assert stage.last is not None and stage.hook == drill.stage.hook and stage.set == drill.stage.set


def test_an_option_with_a_list_is_repeated() -> None:
    assert options({"lora-modules": ["a=x", "b=y"]}) == ["--lora-modules", "a=x", "--lora-modules", "b=y"]


def test_the_neighbour_ends_with_the_engine() -> None:
    """The parent named on its command line is not its own, as after the engine's death."""
    done = subprocess.run([sys.executable, "-c", NEIGHBOUR, "0.01", "0.02", "1"], timeout=20, check=True)
    assert done.returncode == 0
