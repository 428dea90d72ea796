"""The page that Streamlit's server sends first, with the style of all pages in it.

Streamlit draws the elements of a page before it loads what `st.html` needs. A style sent that way arrives after the
first paint, and everything on the page moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from streamlit import file_util

FOLDER = Path(__file__).parent
STYLE = FOLDER / "shell.css"
SCRIPTS = [FOLDER / name for name in ("history.js", "shortcuts.js", "first_paint.js")]
INDEX = "index.html"


@contextmanager
def styled_index() -> Iterator[Path]:
    """Let Streamlit's server send its own files with another `index.html`; yield their folder."""
    static = Path(file_util.get_static_dir())
    with TemporaryDirectory(prefix="prep-app-") as name:
        folder = Path(name)
        for file in static.iterdir():
            if file.name != INDEX:
                (folder / file.name).symlink_to(file)
        (folder / INDEX).write_text(with_style((static / INDEX).read_text("utf-8")), "utf-8")
        file_util.get_static_dir = lambda: name
        yield folder


def with_style(page: str) -> str:
    """Add style and scripts. The style stands in the body because Streamlit adds its own rules to the head."""
    parts = [f"<style>{STYLE.read_text('utf-8')}</style>"]
    parts += [f"<script>{script.read_text('utf-8')}</script>" for script in SCRIPTS]
    before, body, after = page.partition("<body>")
    return "".join([before, body, *parts, after])
