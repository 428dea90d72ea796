"""prep mock peer: one machine and two people, or a file that they send each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli.main import app
from interview.mock.peer import read
from tests.app.test_mock_cli import cache, home  # noqa: F401

CANDIDATE = (
    *("", "/clarify how long?", "A freed slot is refilled in the next step.", "."),
    *("61", "50..70", "70", "3", "75", "60..80", "", "2", "80"),
    *("gpu h100, max 128", "commit", "1", "80", "waiting_mean", "1", "1", "1"),
)
INTERVIEWER = ("h", "z", "m", "3", "", "9", "4", "", "", "5", "Good; say the number earlier.")


def prep(*args: str, lines: tuple[str, ...] = ()) -> Result:
    return CliRunner().invoke(app, ["mock", "peer", *args], input="".join(f"{line}\n" for line in lines))


@pytest.mark.slow
def test_a_round_goes_to_the_candidate_and_back(tmp_path: Path) -> None:
    path = str(tmp_path / "round.prep")
    made = prep("--host", "--seed", "3", "--out", path)
    assert made.exit_code == 0, made.output
    script = next(line for line in made.output.splitlines() if line.startswith("your script: "))
    assert "would score 5" in Path(script.removeprefix("your script: ")).read_text()
    assert prep("--host", "--out", path).exit_code == 2
    part = prep("--join", path, lines=(*CANDIDATE[:4], "q"))
    assert "continues exactly here" in part.output and "would score 5" not in part.output
    rest = prep("--join", path, lines=CANDIDATE[4:])
    assert "back to your interviewer" in rest.output and "measured" not in rest.output, rest.output
    marked = prep("--mark", path, lines=INTERVIEWER)
    assert "for the interviewer" in marked.output and "MISS" in marked.output, marked.output
    assert read(Path(path)).marks["why"] == {"free_slot": "hit", "longest": "miss"}
    assert read(Path(path)).ratings == {"correctness": 3, "quantification": 4, "communication": 5}
    shown = prep("--join", path)
    assert "would score 5" in shown.output and "Good; say the number earlier." in shown.output


def test_on_one_machine_the_keyboard_goes_back_and_forth() -> None:
    hand_over = ("", "")
    lines = (
        *("", *CANDIDATE[:4], "", "h", "m", ""),
        *(*CANDIDATE[4:7], *hand_over, *CANDIDATE[7:11], *hand_over, *CANDIDATE[11:13], *hand_over),
        *(*CANDIDATE[13:15], *hand_over, *CANDIDATE[15:19], *hand_over, *CANDIDATE[19:], *hand_over),
        *INTERVIEWER[3:],
    )
    done = prep("--host", "--seed", "3", lines=lines)
    assert done.exit_code == 0 and done.output.count("give the keyboard to the interviewer") == 7, done.output
    assert "Good; say the number earlier." in done.output and "they said" in done.output


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot read"), ("{", "damaged"), ('{"prep": "prep mock round", "format": 9}', "format 9")],
)
def test_a_file_that_is_no_round_is_told_in_one_line(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "round.prep"
    if content is not None:
        path.write_text(content)
    for flag in ("--join", "--mark"):
        done = prep(flag, str(path))
        assert done.exit_code == 2 and words in done.output and "Traceback" not in done.output
