"""`prep version`: the versions that a bug report needs."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

from app.cli import terminal

app = terminal.command_app()
PREP = "prep-workbench"


def version_of(distribution: str) -> str | None:
    """Return the installed version of a distribution, read without importing it; None if it is missing."""
    try:
        return installed_version(distribution)
    except PackageNotFoundError:
        return None


@app.command()
def version() -> None:
    """Print the versions of prep, Python and PyTorch, without importing them."""
    print(f"prep {version_of(PREP) or '(not installed: running from the source tree)'}")
    print(f"python {platform.python_version()}")
    print(f"torch {version_of('torch') or 'missing'}")
