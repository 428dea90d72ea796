"""A colour means the same on all pages and in both themes, and can be read and told apart.

`shell.css` defines them as custom properties; `colours.py` and `theme.js` repeat those that are drawn without it.
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.debugger import colours
from app.debugger.request_colours import NUM_COLOURS, assign, colour_of, mark_of

ROOT = Path(colours.__file__).parent
SHELL = (ROOT / "shell.css").read_text(encoding="utf-8")
SHEETS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.css"))


def defined(text: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", text))


DARK = defined(SHELL.split("@media (prefers-color-scheme: light)")[0])
LIGHT = DARK | defined(SHELL.split("@media (prefers-color-scheme: light)")[1].split("\n}\n")[0])
THEMES = {"dark": DARK, "light": LIGHT}


def test_what_python_and_the_canvases_draw_has_the_colours_of_the_style_sheet() -> None:
    assert [colour.lower() for colour in colours.REQUESTS] == [
        DARK[f"request-{n}"] for n in range(NUM_COLOURS)
    ]
    for name in ("USED", "SHARED", "CACHED", "PREEMPTED"):
        assert getattr(colours, name).lower() == DARK[name.lower()]
    said = (ROOT / "step_view/theme.js").read_text(encoding="utf-8")
    for name, colour in re.findall(r'(\w+): "(#\w{6})"', said):
        assert colour.lower() == DARK[name]
    requests = re.search(r"requests: \[([^\]]*)\]", said)
    assert requests is not None and re.findall(r"#\w{6}", requests[1]) == list(colours.REQUESTS)


@pytest.mark.parametrize("path", SHEETS)
def test_a_style_sheet_uses_only_properties_that_both_themes_define(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    own = set(re.findall(r"(--[\w-]+):", text))
    for name in re.findall(r"var\(--([\w-]+)", text):
        assert name in DARK or f"--{name}" in own or name in ("own", "st-font"), f"{path} uses --{name}"
    if path != "shell.css":
        assert not set(re.findall(r"(?<![\w-])color: (#\w{6})", text)), f"{path} has a text colour of its own"


def luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour. Source: WCAG 2.2, relative luminance."""
    red, green, blue = linear(colour)
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)


def linear(colour: str) -> NDArray[np.float64]:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ["text", "soft", "quiet", "blue", "orange", "code", "notice", "alarm"])
def test_text_has_contrast_on_the_ground_and_on_panels(theme: str, name: str) -> None:
    """WCAG AA, 4.5:1."""
    for ground in ("ground", "panel"):
        assert contrast(THEMES[theme][name], THEMES[theme][ground]) >= 4.5, f"--{name} on --{ground}"


DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
)
"""Linear RGB as deuteranopes see it. Source: Machado et al. 2009, table 1, severity 1.0."""


def lab(colour: NDArray[np.float64]) -> NDArray[np.float64]:
    """CIE L*a*b* of linear RGB, white D65."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ colour
    scaled = xyz / np.array([0.9505, 1.0, 1.089])
    f = np.where(scaled > 0.008856, np.cbrt(scaled), 7.787 * scaled + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", THEMES)
def test_two_requests_differ_for_a_deuteranope(theme: str) -> None:
    """A difference of 10 in CIE76 is seen at a glance; a barely visible one is 2.3."""
    seen = [
        lab(np.clip(DEUTERANOPIA @ linear(THEMES[theme][f"request-{n}"]), 0, 1)) for n in range(NUM_COLOURS)
    ]
    for one, other in combinations(range(NUM_COLOURS), 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= 10, f"requests {one} and {other}"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12), st.booleans()), max_size=60))
def test_no_two_requests_that_live_in_a_step_look_alike_and_few_share_no_colour(
    steps: list[tuple[int, int, bool]],
) -> None:
    lives: list[tuple[int, int | None]] = []
    now = 0
    for gap, length, ends in steps:
        now += gap
        lives.append((now, now + length if ends else None))
    found = assign(lives)
    for number, (added, _) in enumerate(lives):
        living = [n for n, (_, end) in enumerate(lives[:number]) if end is None or end >= added]
        assert found[number] not in [found[n] for n in living]
        taken = [colour_of(found[n]) for n in living]
        if len(living) < NUM_COLOURS and len(set(taken)) == len(taken):
            assert colour_of(found[number]) not in taken
            assert mark_of(found[number]) == ""
        known = [
            (begin, end if end is not None and end < added else None) for begin, end in lives[: number + 1]
        ]
        assert assign(known)[number] == found[number], "what comes later changes nothing"
    assert len({(colour_of(look), mark_of(look)) for look in found}) == len(set(found))


def test_a_chart_draws_no_request_and_no_selection_in_one_colour() -> None:
    """Requests have the seven colours of the palette, so the current step and the selection have that of text, and a
    reason of a wait has no colour that differs from a request's only where a request has it, too."""
    requests = {value for n in range(NUM_COLOURS) for value in (DARK[f"request-{n}"], LIGHT[f"request-{n}"])}
    rects = (ROOT / "charts/rects.css").read_text(encoding="utf-8")
    for rule in (".marker", ".row.chosen", ".box.chosen"):
        body = re.search(re.escape(rule) + r" \{([^}]*)\}", rects)
        assert body is not None and "var(--text)" in body[1] and "--notice" not in body[1], rule
    opacity = re.search(r"\.marker \{[^}]*fill-opacity: ([\d.]+)", rects)
    assert opacity is not None and float(opacity[1]) == float(colours.HERE_SWATCH.rpartition("opacity:")[2])
    assert "background:var(--text)" in colours.HERE_SWATCH
    for theme in THEMES.values():
        assert theme["text"] not in requests
        assert theme["victim"] not in requests
    assert "notice" not in colours.WAITS.values()


def test_no_script_draws_with_a_colour_that_only_fits_the_dark_theme() -> None:
    for path in ROOT.rglob("*.js"):
        found = re.findall(r"rgba?\((?!0, 0, 0)[^)]*\)", path.read_text(encoding="utf-8"))
        assert len(found) == (path.stem == "walk"), path.name  # a shade behind a token, on both grounds
