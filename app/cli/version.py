"""`prep version`: what to put into a bug report."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

from app.cli import terminal

app = terminal.command_app()


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, read without importing it."""
    try:
        return installed_version(distribution)
    except PackageNotFoundError:
        return None


@app.command()
def version() -> None:
    """Versions of prep, Python and PyTorch, without loading any of them."""
    print(f"prep {version_of('prep-workbench') or '(not installed: running from the source tree)'}")
    print(f"python {platform.python_version()}")
    print(f"torch {version_of('torch') or 'missing'}")
