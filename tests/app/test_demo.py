"""The demo shows real events, on any terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from app.cli.demo import drawing
from app.cli.demo.drawing import (
    COLOURS,
    EVENT_STYLE,
    STATUS_STYLE,
    TILES_PER_ROW,
    block_map,
    line_of,
    picture,
    why,
)
from app.cli.demo.pool import Event, Frame, Row, Tile, Visitor, choose_pool
from app.cli.main import app
from engine.core.sched_output import NotScheduled, Reason
from engine.core.stats import StepStats
from tests.app.debugger.test_colours import contrast


@pytest.fixture(scope="module")
def told() -> str:
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 0, result.output
    assert result.stderr.strip().startswith("next: prep")
    return result.stdout


def test_the_naive_and_the_cached_tokens_are_the_same(told: str) -> None:
    assert re.search(r"the same \d+ tokens", told) and "NOT the same" not in told


def test_a_prefix_hit_and_a_preemption_happen(told: str) -> None:
    assert "prefix hit" in told
    assert "is preempted" in told
    assert "resumes" in told


def test_six_answers_survive_the_shortage_unchanged(told: str) -> None:
    assert "6 of 6" in told
    assert told.count("has finished") == 6


def test_lines_fit_a_narrow_terminal_and_hold_no_escape_codes(told: str) -> None:
    assert "\x1b" not in told


def frame(tiles: list[Tile], rows: list[Row]) -> Frame:
    return Frame(7, tiles, rows, [], [("A", 1), ("B", 12)], StepStats())


def drawn(renderable: object) -> str:
    console = Console(width=80, record=True, force_terminal=True, file=open("/dev/null", "w"))
    console.print(renderable)
    return console.export_text()


def test_the_colours_can_be_read_on_a_dark_and_on_a_light_terminal() -> None:
    """Contrast of at least 3:1 as text on black and on white, and under the dark letters of a tile."""
    styles = [*COLOURS.values(), *STATUS_STYLE.values(), *EVENT_STYLE.values()]
    assert not [style for style in styles if re.search("yellow|white|cyan|bright|grey[0-3]", style)]
    for colour in {found for style in styles for found in re.findall(r"#\w{6}", style)}:
        assert min(contrast(colour, "#000000"), contrast(colour, "#ffffff"), contrast(colour, "#101010")) >= 3
    backgrounds = set(re.findall(r"#101010 on (\S+)\"", Path(drawing.__file__).read_text(encoding="utf-8")))
    assert backgrounds == {"{COLOURS[tile.owners[0]]}", "{COLOURS['A']}"}


def test_a_tile_shows_its_owners_by_letter() -> None:
    tiles = [Tile(("A",), True), Tile(("A", "B"), True), Tile((), True), Tile((), False)]
    assert drawn(block_map(tiles)).split() == ["A", "AB", "░", "·"]
    rows = drawn(block_map([Tile((), False)] * (TILES_PER_ROW + 1))).strip("\n").splitlines()
    assert len(rows) == 2


def test_the_picture_fits_eighty_columns_even_with_six_long_answers() -> None:
    reason = NotScheduled("F", Reason.NO_BLOCKS, {"need": 12, "free": 3, "evictable": 0})
    rows = [Row(name, "decode", "What?", 100, 101, 96, "word " * 40, None) for name in "ABCDE"]
    rows.append(Row("F", "preempted", "What?", 0, 101, 0, "", reason))
    events = [(step, Event("preempt", "F loses everything, " * 5)) for step in range(9)]
    text = drawn(picture(frame([Tile(("A",), False)] * 60, rows), events))
    assert max(map(len, text.splitlines())) <= 80
    assert "blocks: needs 12, free 3" in text


def test_a_step_is_one_plain_line_elsewhere() -> None:
    row = Row("B", "waiting", "What?", 0, 9, 0, "", NotScheduled(None, Reason.PREFIX_IN_FLIGHT, {"block": 1}))
    assert line_of(frame([Tile(("A",), False), Tile((), False)], [row])) == (
        "step  7  blocks 1/2  batch A+1 B+12  B waiting: another request computes its prefix right now"
    )


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_code_has_words(reason: Reason) -> None:
    assert why(NotScheduled("A", reason, {"need": 1, "free": 2}))


def test_the_pool_is_the_largest_in_which_somebody_is_preempted() -> None:
    visitors = [Visitor("A", 0, "", list(range(40))), Visitor("B", 0, "", list(range(50, 90)))]
    answers = {"A": list(range(30)), "B": list(range(30))}
    # Two requests of 69 computed tokens each: 9 blocks of 8 each, so 18 are enough and 17 are not.
    assert choose_pool(visitors, answers, max_model_len=200) == 1 + 17
