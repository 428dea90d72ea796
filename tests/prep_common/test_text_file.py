"""A file that cannot be read is one sentence: its name, why, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from prep_common.text_file import MOST_LISTED, UnreadableFile, read_text


def why(path: Path) -> str:
    with pytest.raises(UnreadableFile) as caught:
        read_text(path)
    return str(caught.value)


def test_a_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfcaf\xc3\xa9\n")
    assert read_text(tmp_path / "a") == "café\n"


def test_other_encodings_are_named_by_their_first_wrong_byte(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"caf\xe9\n")
    assert (
        why(tmp_path / "a")
        == f"cannot read {tmp_path / 'a'}: it is not text in UTF-8 (byte 3 is 0xe9); save it as UTF-8"
    )


def test_a_missing_file_names_the_closest_one_or_those_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert why(Path("plan.yaml")).endswith("it does not exist; this folder has no files")
    Path(".plan.yaml.lock").touch()
    Path("plans.yaml").touch()
    assert why(Path("plan.yaml")).endswith("it does not exist; did you mean 'plans.yaml'?")
    for number in range(MOST_LISTED + 1):
        Path(f"{number}.json").touch()
    assert why(Path("other.yaml")).endswith("it does not exist; this folder has plans.yaml")
    assert why(Path("answer.json")).endswith("this folder has 0.json, 1.json, 2.json, 3.json, 4.json, …")
    assert why(Path("no/x.yaml")).endswith("it does not exist; there is no folder no")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert why(tmp_path).endswith("it is a folder; name a file in it")
