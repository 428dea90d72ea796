"""Golden traces and the verdict of an upgrade check, without servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.bench.golden import (
    Divergence,
    GoldenAnswer,
    draw_golden,
    drift,
    first_divergence,
    read_golden,
    write_golden,
)
from app.bench.upgrade_verdict import Check, Limits, SideFigures, checks_of, overall
from engine.config import ConfigError
from prep_common.text_file import UnreadableFile

SOUND: dict[str, Any] = {
    "hit_rate": 0.5,
    "ttft": [0.02] * 6,
    "itl": [0.001] * 6,
    "peak_bytes": 10**9,
    "preemptions": 3.0,
}


def verdict_of(
    new: dict[str, Any],
    divergences: list[Divergence] | None = None,
    unstable: list[int] | None = None,
    drifted: float | None = 0.0,
) -> tuple[str, dict[str, Check]]:
    base, other = SideFigures("base", **SOUND), SideFigures("new", **{**SOUND, **new})
    checks = checks_of(base, other, divergences or [], unstable or [], 24, Limits(), drifted)
    return overall(checks), {check.name: check for check in checks}


def test_equal_sides_pass() -> None:
    assert verdict_of({})[0] == "pass"


@pytest.mark.parametrize(
    ("new", "name"),
    [
        ({"failed": 1}, "failed requests"),
        ({"hit_rate": 0.48}, "prefix hit rate"),
        ({"ttft": [0.023] * 6}, "median TTFT (s)"),
        ({"itl": [0.0012] * 6}, "median ITL (s)"),
        ({"peak_bytes": 1_060_000_000}, "peak memory (bytes)"),
        ({"preemptions": 4.0}, "preemptions"),
    ],
)
def test_each_property_alone_fails_the_upgrade(new: dict[str, Any], name: str) -> None:
    verdict, checks = verdict_of(new)
    assert verdict == "fail"
    assert [check.name for check in checks.values() if check.verdict == "fail"] == [name]


def test_a_time_is_decided_only_if_its_whole_interval_is_on_one_side_of_the_limit() -> None:
    assert verdict_of({"ttft": [0.019, 0.02, 0.02, 0.021, 0.0215, 0.0219]})[0] == "pass"
    assert verdict_of({"ttft": [0.019, 0.02, 0.02, 0.021, 0.0215, 0.025]})[0] == "inconclusive"
    verdict, checks = verdict_of({"ttft": [0.02] * 5})
    assert verdict == "inconclusive" and "at least 6 rounds" in checks["median TTFT (s)"].why


def test_a_near_tie_passes_and_a_clear_change_fails_unless_the_base_changes_too() -> None:
    near, clear = Divergence(3, 7, 41, 42, 0.004), Divergence(5, 2, 9, 8, 1.25)
    unknown = Divergence(5, 2, 9, 8, None)
    assert verdict_of({}, [near])[0] == "pass"
    verdict, checks = verdict_of({}, [near, clear])
    assert verdict == "fail"
    assert "request 5 differs at token 2 (9 became 8, margin 1.250 nats)" in checks["equal answers"].why
    assert verdict_of({}, [unknown])[0] == "fail"
    assert verdict_of({}, [clear], [5])[0] == "inconclusive"
    assert verdict_of({}, [clear, Divergence(6, 0, 1, 2, 2.0)], [5])[0] == "fail"


def test_a_drift_of_the_logprobs_fails_before_any_token_changes() -> None:
    base = [GoldenAnswer([1, 2, 3], [1.0] * 3, [-0.1, -0.2, -0.3])]
    same = [GoldenAnswer([1, 2, 3], [1.0] * 3, [-0.12, -0.2, -0.34])]
    assert drift(base, same) == pytest.approx(0.02)
    other = [GoldenAnswer([1, 9, 3], [1.0] * 3, [-0.12, -5.0, -9.0])]
    assert drift(base, other) == pytest.approx(0.02), "tokens from the first difference on do not count"
    assert drift(base, [GoldenAnswer([1, 2, 3])]) is None
    verdict, checks = verdict_of({}, drifted=0.02)
    assert verdict == "fail" and "0.02 nats" in checks["drift of logprobs"].why


def test_what_a_side_cannot_tell_is_not_measured() -> None:
    nothing = {"hit_rate": None, "peak_bytes": None, "preemptions": None, "ttft": [], "itl": []}
    verdict, checks = verdict_of(nothing, drifted=None)
    assert verdict == "pass" and sum(check.verdict == "not measured" for check in checks.values()) == 6


def test_the_first_divergence_is_a_token_or_the_end_of_the_shorter_answer() -> None:
    base = GoldenAnswer([1, 2, 3], [0.5, 0.25, 0.75])
    assert first_divergence(0, base, GoldenAnswer([1, 2, 3])) is None
    assert first_divergence(0, base, GoldenAnswer([1, 9, 3])) == Divergence(0, 1, 2, 9, 0.25)
    assert first_divergence(0, base, GoldenAnswer([1, 2])) == Divergence(0, 2, 3, None, 0.75)
    assert first_divergence(0, GoldenAnswer([1]), base) == Divergence(0, 1, None, 2, None)


def test_a_trace_is_drawn_from_its_seed_with_shared_prefixes_and_survives_a_file(tmp_path: Path) -> None:
    requests = draw_golden(9, 4, 1000, 8.0)
    assert requests == draw_golden(9, 4, 1000, 8.0) != draw_golden(9, 5, 1000, 8.0)
    assert len({tuple(request.prompt[:96]) for request in requests}) == 3
    assert [request.at for request in requests] == sorted(request.at for request in requests)
    answers = [GoldenAnswer([1, 2], [0.5, 0.25], [-0.5, -0.25])] * 9
    write_golden(tmp_path / "golden", requests, answers, {"seed": 4})
    assert read_golden(tmp_path / "golden") == (requests, answers)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no requests"),
        ("{}\n", r"golden:1: not a golden trace .*KeyError"),
        ('{"prep_golden": 2}\n', "has format 2; this version reads 1"),
        ('{"prep_golden": 1}\n{"at": 0, "prompt": [], "output_len": 4}\n', "golden:2: .*a prompt"),
        ('{"prep_golden": 1}\nnot json\n', "golden:2: not a golden trace"),
    ],
)
def test_a_wrong_file_is_an_error_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "golden").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_golden(tmp_path / "golden")
    with pytest.raises(UnreadableFile, match="cannot read"):
        read_golden(tmp_path / "none")
