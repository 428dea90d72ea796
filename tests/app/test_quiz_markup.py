"""Markdown of questions in a terminal: marks become styles, everything else is printed as it is."""

from __future__ import annotations

import pytest
from rich.text import Text

from app.cli.quiz.showing import inline


@pytest.mark.parametrize(
    ("markdown", "printed"),
    [
        (r"`x\`", "x\\"),
        (r"`\`", "\\"),
        (r"**`a\`**", "a\\"),
        (r"`[red]\`", "[red]\\"),
        (r"`\n` and `[red]`", r"\n and [red]"),
        (r"\\`x`", r"\x"),
        (r"a\\**b**", r"a\b"),
        (r"\\*word*", r"\word"),
        (r"\\\[red]`x`", r"\[red]x"),
        (r"\\[red]", r"\[red]"),
        (r"\*a\* \`b\` \_c\_", "*a* `b` _c_"),
        ("ends in \\", "ends in \\"),
    ],
)
def test_a_backslash_is_printed_and_never_escapes_a_tag(markdown: str, printed: str) -> None:
    assert Text.from_markup(inline(markdown)).plain == printed
