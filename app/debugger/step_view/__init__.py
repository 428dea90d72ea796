"""The component of the page Step: block map, batch, queue and timeline, with playback in the browser.

Python sends parts (`parts.py`) that the component asks for; JavaScript keeps them and moves through the run by
itself. The JavaScript files are modules that `node --test` imports one by one; here they are joined into one,
because Streamlit takes a component's script as one text.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
SCRIPTS = (
    "frames.js",
    "breaks.js",
    "keys.js",
    "theme.js",
    "owners.js",
    "step_state.js",
    "store.js",
    "block_map.js",
    "timeline.js",
    "lanes.js",
    "panels.js",
    "step_view.js",
)
"""In the order of their imports; `step_view.js` has the default export."""
_IMPORT = re.compile(r"^import .*?;\n", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)


@cache
def script() -> str:
    """All modules as one: without their imports, and with one export."""
    texts = [(FOLDER / name).read_text("utf-8") for name in SCRIPTS]
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)
