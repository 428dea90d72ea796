"""Folders that the environment names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prep_common.paths import built_dir, cache_dir, data_dir, state_path, write_atomically

PRINT = "from prep_common.paths import built_dir, cache_dir; print(built_dir(), cache_dir(), sep='\\n')"


@pytest.mark.parametrize("folder", [data_dir, cache_dir, built_dir])
def test_a_relative_folder_stays_where_it_was_named(
    folder: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREP_HOME", "home")
    monkeypatch.setenv("PREP_CACHE", "cache")
    monkeypatch.chdir(tmp_path)
    before = folder()
    assert before.is_absolute() and before.is_relative_to(tmp_path)
    monkeypatch.chdir("/")
    assert folder() == before
    assert state_path() == (data_dir() / "state.sqlite3") and state_path().is_absolute()


def test_a_process_in_another_folder_finds_the_same_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREP_CACHE", "cache")
    monkeypatch.delenv("PREP_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert built_dir() == tmp_path / "cache"
    root = Path(__file__).resolve().parents[2]
    child = subprocess.run(
        [sys.executable, "-c", PRINT],
        cwd=root,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout.splitlines() == [str(tmp_path / "cache")] * 2


def test_a_link_keeps_its_place_and_its_target_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "target.md", tmp_path / "link.md"
    target.write_text("old")
    link.symlink_to(target.name)
    write_atomically(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.md", "target.md"]


def test_a_device_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, "to the reader")
    assert os.read(reader, 100) == b"to the reader" and pipe.is_fifo()
    os.close(reader)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(Path("/dev/full"), "x")


def test_a_pipe_that_a_shell_names_by_its_descriptor_is_written() -> None:
    """As in `--html >(gzip > page.gz)` and `--html /dev/stdout | less`."""
    reader, writer = os.pipe()
    write_atomically(Path(f"/dev/fd/{writer}"), "to the reader")
    assert os.read(reader, 100) == b"to the reader"
    os.close(writer)
    os.close(reader)


def test_a_link_in_a_circle_names_no_file_and_becomes_one(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    write_atomically(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"
