"""The compiled cache: it saves time, and never decides what is in the files."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from quizzes import yaml_files
from quizzes.yaml_files import BadFile, load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREP_HOME", str(tmp_path / "home"))
    folder = tmp_path / "bank"
    (folder / "memory").mkdir(parents=True)
    (folder / "memory" / "one.yaml").write_text("name: one\nsize: 1\n")
    (folder / "memory" / "many.yaml").write_text("- name: two\n  size: 2\n- name: three\n  size: 3\n")
    return folder


def check(data: dict[str, Any]) -> None:
    if not isinstance(data.get("size"), int):
        raise ValueError("size: not a number")


class Counting:
    """A checker that knows how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, data: dict[str, Any]) -> None:
        self.calls += 1
        check(data)


def names(folder: Path, checker: Any = check) -> list[str]:
    return [document.data["name"] for document in load(folder, checker, [])[0]]


def cache_file(folder: Path) -> Path:
    (found,) = (folder.parent / "home" / "cache").glob("*.json")
    return found


def test_the_second_time_nothing_is_parsed_and_the_same_is_found(folder: Path) -> None:
    checker = Counting()
    first = load(folder, checker, [])
    assert checker.calls == 3
    assert load(folder, checker, []) == first and checker.calls == 3


def test_a_process_parses_the_cache_once_until_it_is_written_again(folder: Path) -> None:
    load(folder, check, [])
    first, second = (load(folder, check, [])[0] for _ in range(2))
    assert first is not second and all(one is same for one, same in zip(first, second, strict=True))
    (folder / "memory" / "one.yaml").write_text("name: uno\nsize: 1\n")
    assert names(folder) == names(folder) == ["two", "three", "uno"]


@pytest.mark.parametrize("damage", ["", "{", "[]", "3", "null", '{"key": 1}', "\N{SNOWMAN}" * 50])
def test_a_damaged_cache_is_named_and_made_anew(
    folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = load(folder, check, [])
    path = cache_file(folder)
    whole = path.read_text(encoding="utf-8")
    path.write_text(damage, encoding="utf-8")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert load(folder, check, []) == first
    if damage != '{"key": 1}':  # a cache of other files is not damaged
        assert "is damaged" in caplog.text and path.name in caplog.text
    assert path.read_text(encoding="utf-8") == whole


def test_a_cache_with_entries_in_another_form_is_made_anew(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = load(folder, check, [])
    path = cache_file(folder)
    path.write_text(path.read_text().replace('"data"', '"date"'))
    assert load(folder, check, []) == first
    assert "is damaged" in caplog.text


def test_the_warning_is_on_stderr_of_a_program_without_settings_for_logging(folder: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom quizzes.yaml_files import load\n"
        "print([d.data['name'] for d in load(Path(sys.argv[1]), lambda data: None, [])[0]])\n"
    )

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, str(folder)], cwd=ROOT, capture_output=True, text=True, check=True
        )

    first = run()
    assert first.stderr == ""
    path = cache_file(folder)
    path.write_bytes(path.read_bytes()[:40])
    second = run()
    assert second.stdout == first.stdout
    assert "is damaged" in second.stderr and path.name in second.stderr
    assert run().stderr == ""


@pytest.mark.parametrize("change", ["edit", "add", "remove", "schema"])
def test_a_change_is_seen(folder: Path, change: str, tmp_path: Path) -> None:
    schema = tmp_path / "schema.py"
    schema.write_text("1")
    checker = Counting()
    load(folder, checker, [schema])
    before = checker.calls
    path = folder / "memory" / "one.yaml"
    if change == "edit":
        path.write_text("name: uno\nsize: 1\n")
        os.utime(path, ns=(1, 1))
    elif change == "add":
        (folder / "memory" / "new.yaml").write_text("name: new\nsize: 4\n")
    elif change == "remove":
        path.unlink()
    else:
        schema.write_text("22")
    found = [document.data["name"] for document in load(folder, checker, [schema])[0]]
    assert checker.calls > before
    assert (
        found
        == {
            "edit": ["two", "three", "uno"],
            "add": ["two", "three", "new", "one"],
            "remove": ["two", "three"],
            "schema": ["two", "three", "one"],
        }[change]
    )


def test_a_bad_file_is_told_again_from_the_cache(folder: Path) -> None:
    (folder / "memory" / "bad.yaml").write_text("- name: x\n  size: 1\n- name: y\n  size: big\n- 3\n")
    expected = [
        BadFile("memory/bad.yaml", 3, "size: not a number"),
        BadFile("memory/bad.yaml", 5, "expected a mapping, found int"),
    ]
    assert load(folder, check, [])[1] == expected
    assert load(folder, check, [])[1] == expected
    assert names(folder) == ["x", "two", "three", "one"]


def test_folders_of_the_same_name_do_not_share_a_cache(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "bank"
    other.mkdir(parents=True)
    (other / "a.yaml").write_text("name: other\nsize: 1\n")
    assert names(folder) != names(other) == ["other"]
    assert names(folder) == ["two", "three", "one"]


def test_an_unwritable_cache_folder_only_costs_time(folder: Path) -> None:
    home = folder.parent / "home"
    home.write_text("a file where a folder should be")
    checker = Counting()
    assert names(folder, checker) == names(folder, checker) == ["two", "three", "one"]
    assert checker.calls == 6
    assert home.read_text() == "a file where a folder should be"


def test_a_cache_that_cannot_be_replaced_only_costs_time(folder: Path) -> None:
    names(folder)
    path = cache_file(folder)
    path.unlink()
    path.mkdir()
    assert names(folder) == ["two", "three", "one"]
    assert [found.name for found in path.parent.iterdir()] == [path.name]  # nothing is left beside it


WRITER = """
import sys
from pathlib import Path
from quizzes.yaml_files import load
folder = Path(sys.argv[1])
cached = next(iter((folder.parent / "home" / "cache").glob("*.json")), None)
for turn in range(60):
    found, bad = load(folder, lambda data: None, [])
    assert [d.data["name"] for d in found] == ["two", "three", "one"] and not bad
    for path in (folder.parent / "home" / "cache").glob("bank-*.json"):
        path.unlink(missing_ok=True)
"""


def test_two_programs_that_write_the_same_cache_never_see_half_of_it(folder: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    told = [writer.communicate(timeout=120)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], told
    assert told == ["", ""]  # a torn file would be called damaged
    assert names(folder) == ["two", "three", "one"]


def test_two_threads_that_load_at_once_find_the_same(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    found: list[list[str]] = []

    def load_often() -> None:
        for _ in range(40):
            found.append(names(folder))
            for path in yaml_files.cache_dir().glob("bank-*.json"):
                path.unlink(missing_ok=True)

    threads = [threading.Thread(target=load_often) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["two", "three", "one"]] * 80
    assert "is damaged" not in caplog.text
