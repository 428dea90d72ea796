"""The pictures of the README and of the debugger's tour: there, taken by the script, small enough for a slow line."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "docs" / "screenshots.py"


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("screenshots", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def size_of(picture: Path) -> tuple[int, int]:
    """Width and height in pixels."""
    with Image.open(picture) as image:
        assert f".{str(image.format).lower()}" == picture.suffix
        assert getattr(image, "is_animated", False) == (picture.suffix == ".webp")
        return image.size


def test_every_picture_of_the_pages_is_one_that_the_script_takes() -> None:
    pages = "".join((ROOT / name).read_text() for name in ("README.md", "docs/debugger_tour.md"))
    shown = dict(re.findall(r"!\[([^\]]+)\]\((?:docs/)?(\w+\.(?:png|webp))\)", pages))
    shots = script().SHOTS
    assert set(shown.values()) == {f"{name}{shot.suffix}" for name, shot in shots.items()}
    assert all(len(alt) > 40 for alt in shown), "who cannot see a picture is told what it shows"
    for name, shot in shots.items():
        picture = ROOT / "docs" / f"{name}{shot.suffix}"
        assert size_of(picture) == (1280, shot.height)
        assert picture.stat().st_size <= script().MOST_BYTES[shot.suffix]


def test_no_frame_of_the_animation_is_dimmed() -> None:
    """Streamlit dims a page whose script runs again; a reader sees that as flicker."""
    from PIL import ImageStat

    with Image.open(ROOT / "docs" / "step.webp") as film:
        shades = []
        for index in range(film.n_frames):
            film.seek(index)
            shades.append(ImageStat.Stat(film.convert("L")).mean[0])
    assert len(shades) == 20 and max(shades) < 1.2 * min(shades), shades


ROUNDING = re.compile(r"\d(\.\d+)?e-\d+")
"""Differences of two ways to compute the same, which depend on the processor."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["step", "kernel", "compare"])
def test_a_picture_shows_what_its_page_shows_now(tmp_path: Path, browser: Browser, name: str) -> None:
    """The words of the page, which each picture carries. `browser` sees to it that there is a Chromium."""
    command = [sys.executable, str(SCRIPT), "--to", str(tmp_path), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shot = script().SHOTS[name]
    taken, committed = (folder / f"{name}{shot.suffix}" for folder in (tmp_path, ROOT / "docs"))
    assert size_of(taken) == (1280, shot.height)
    now, then = (ROUNDING.sub("rounding", script().words_of(picture)) for picture in (taken, committed))
    assert now, "the picture carries no words"
    assert then.splitlines() == now.splitlines(), f"python docs/screenshots.py {name} takes it again"


def test_a_picture_that_nobody_knows_is_refused() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "sunset"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "no picture is called sunset: step, kernel, compare" in done.stderr
