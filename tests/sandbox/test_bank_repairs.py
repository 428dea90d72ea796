"""Regression tests of the bank's repairs: hostile ones pass no check, and a right one in another style passes all."""

from __future__ import annotations

from pathlib import Path

import pytest

from prep_common.paths import cache_dir
from prep_common.sandbox import Limits
from quizzes.autopsies.programs import CheckResult, read, run_checks

SOLUTION = "from quizzes.autopsies.block_manager.solution import *\n"
PATCHES = """
import sys
for name in ("quizzes.autopsies.programs", "prep_common.sandbox", "prep_common.sandbox.guest"):
    try:
        module = __import__(name, fromlist=["x"])
    except Exception:
        continue
    for attribute in ("CheckResult", "run_checks", "Guest"):
        setattr(module, attribute, lambda *args, **keywords: True)
"""
FORGES = """
import json, os, struct, sys
for fd in range(1, 20):
    for answer in ([2, "ok", None], {"ok": True, "result": {"num_passed": 10}}):
        text = json.dumps(answer).encode()
        try:
            os.write(fd, struct.pack(">QQ", len(text), 0) + text)
            os.write(fd, text + b"\\n")
        except OSError:
            pass
"""
BLOCK_WISE = """
import math
def attention(query, key_blocks, value_blocks, block_table, seq_len, block_size):
    scale, top, total, output = 1 / math.sqrt(len(query)), -math.inf, 0.0, [0.0] * len(query)
    for first in range(0, seq_len, block_size):
        block, count = block_table[first // block_size], min(block_size, seq_len - first)
        keys, values = key_blocks[block][:count], value_blocks[block][:count]
        scores = [scale * sum(q * k for q, k in zip(query, key)) for key in keys]
        new_top = max(top, *scores)
        shrink, weights = math.exp(top - new_top), [math.exp(score - new_top) for score in scores]
        total = total * shrink + sum(weights)
        output = [o * shrink + sum(w * v[i] for w, v in zip(weights, values)) for i, o in enumerate(output)]
        top = new_top
    return [o / total for o in output]
"""


def _passed(results: list[CheckResult]) -> list[str]:
    return [result.name for result in results if result.ok]


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", [SOLUTION, PATCHES, FORGES], ids=["imports the solution", "patches", "forges"]
)
def test_a_repair_without_a_program_passes_nothing_and_changes_nothing_for_the_next(source: str) -> None:
    before = run_checks("block_manager", read("block_manager"))
    assert _passed(run_checks("block_manager", source)) == []
    assert run_checks("block_manager", read("block_manager")) == before and len(_passed(before)) < len(before)


def test_the_limit_holds_for_all_checks_together() -> None:
    first, *others = run_checks("block_manager", "while True: pass", Limits(seconds=1.0, megabytes=300))
    assert not first.ok and first.why == "your code stopped after 1 s while loading the file"
    assert {(each.ok, each.why) for each in others} == {
        (False, "not run: the checks before it used up the time")
    }


def test_the_memory_limit_holds() -> None:
    source = "kept = []\nwhile True: kept.append(bytearray(1 << 24))"
    [result] = run_checks("batching_loop", source, Limits(megabytes=200), ["check_it_ends"])
    assert result.why == "your code took more than 200 MiB"


def test_nothing_of_a_repair_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    run_checks("block_manager", read("block_manager", "solution"), names=["check_nonsense_is_refused"])
    assert not cache_dir().exists()


def test_a_repair_that_reads_whole_blocks_is_right() -> None:
    assert [result.why for result in run_checks("attention_kernel", BLOCK_WISE) if not result.ok] == []
