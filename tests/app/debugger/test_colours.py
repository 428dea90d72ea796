"""A colour means the same on all pages: the browser's scripts and style sheets say what `colours.py` says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.debugger import colours

ROOT = Path(colours.__file__).parent


def said(path: str, pattern: str) -> str:
    found = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"))
    assert found is not None, f"{path} no longer says {pattern}"
    return found[1].lower()


@pytest.mark.parametrize(
    ("path", "pattern", "colour"),
    [
        ("step_view/block_map.js", r'used: "(#\w+)"', colours.USED),
        ("step_view/block_map.js", r'shared: "(#\w+)"', colours.SHARED),
        ("step_view/block_map.js", r'cached: "(#\w+)"', colours.CACHED),
        ("step_view/block_map.js", r'free: "(#\w+)"', colours.FREE),
        ("step_view/block_map.js", r'changed: "(#\w+)"', colours.HERE),
        ("step_view/step_view.css", r"\.used i \{ background: (#\w+)", colours.USED),
        ("step_view/step_view.css", r"\.shared i \{.*(#e69f00)", colours.SHARED),
        ("step_view/step_view.css", r"\.cached i \{.*?(#009e73)", colours.CACHED),
        ("step_view/step_view.css", r"tr\.decode\).*background: (#\w+)", colours.PREFILL),
        ("step_view/step_view.css", r"\ntr\.decode .*background: (#\w+)", colours.DECODE),
        ("step_view/timeline.js", r'"preempt", "(#\w+)"', colours.PREEMPTED),
        ("charts/lines.js", r'preempt: "(#\w+)"', colours.PREEMPTED),
        ("charts/rects.js", r'prefill: "(#\w+)"', colours.PREFILL),
        ("charts/rects.js", r'decode: "(#\w+)"', colours.DECODE),
        ("charts/rects.js", r'used: "(#\w+)"', colours.USED),
        ("charts/rects.py", r'id="hatch-cached".*\n.*height="6" fill="(#\w+)"/>\n', colours.CACHED),
        ("charts/rects.py", r'id="hatch".*\n.*height="6" fill="(#\w+)"/>\n', colours.PREEMPTED),
        ("charts/rects.py", r'id="dots".*\n.*height="6" fill="(#\w+)"/>', colours.SHARED),
    ],
)
def test_the_browser_says_the_same_colour(path: str, pattern: str, colour: str) -> None:
    assert said(path, pattern) == colour.lower()


def luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour. Source: WCAG 2.2, relative luminance."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("path", sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.css")))
def test_text_has_contrast_on_the_dark_ground(path: str) -> None:
    """WCAG AA, 4.5:1, on the page's ground and on its panels; text that stands on a fill says so with its own rule."""
    text = (ROOT / path).read_text(encoding="utf-8")
    for rule, declarations in re.findall(r"([^{}]+)\{([^{}]*)\}", text):
        colour = re.search(r"(?<![-\w])color: (#[0-9a-fA-F]{6})\b", declarations)
        if colour is None or re.search(r"background(-color)?: #", declarations):
            continue
        for ground in (colours.GROUND, "#111827"):
            assert contrast(colour[1], ground) >= 4.5, f"{rule.strip()}: {colour[1]} on {ground}"
