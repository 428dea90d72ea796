"""`prep new command NAME`: a command of one function, and its tests."""

from __future__ import annotations

from app.cli.main import COMMANDS
from app.new import Taken

NEXT = """\
a row "NAME" in COMMANDS of app/cli/main.py, and one in the table of app/cli/README.md
prep test --no-lint tests/app/test_NAME_cli.py tests/app/test_main.py  names what is missing
prep test --no-lint tests/packaging -k "pages or language"  the rows, and the texts
app/cli/README.md, "Rules"  what every screen keeps to"""

_TEXT = '''\
"""`prep {name}`: FILL IN what the command does."""

from __future__ import annotations

from app.cli import terminal
from app.cli.options import JsonOption


def {name}(json: JsonOption = False) -> None:
    """FILL IN what the command does, in one sentence.

    Example: prep {name}
    """
    figures: dict[str, int] = {{}}  # FILL IN what it computes
    if json:
        return terminal.print_json(figures)
    terminal.say("FILL IN what it prints")
    terminal.next_command("prep today", "FILL IN the next step")
'''
_TESTS = '''\
"""`prep {name}`: what it prints, its JSON and its errors."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from app.cli import {name} as module
from app.cli.main import COMMANDS, app
from prep_common.text import unfilled


def test_it_is_complete() -> None:
    assert "{name}" in COMMANDS, "{name}: no row in COMMANDS of app/cli/main.py"
    texts = (Path(file).read_text(encoding="utf-8") for file in (module.__file__, __file__))
    left = [what for text in texts for what in unfilled(text)]
    assert not left, "\\n".join(left)


def test_a_script_gets_json() -> None:
    done = CliRunner().invoke(app, ["{name}", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {{}}, "FILL IN the figures"
'''


def skeleton(name: str) -> dict[str, str]:
    """Return the files of a new command. Raises Taken if there is one of this name."""
    paths = f"app/cli/{name}.py", f"tests/app/test_{name}_cli.py"
    if name in COMMANDS:
        raise Taken(f"there is a command {name}", *paths)
    return dict(zip(paths, (_TEXT.format(name=name), _TESTS.format(name=name)), strict=True))
