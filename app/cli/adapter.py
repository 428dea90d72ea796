"""`prep adapter`: versions of LoRA adapters in a registry file that `prep serve --lora-registry` follows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from app.cli import terminal
from app.cli.options import JsonOption, argument, option
from engine.lora.versions import VersionRegistry

NameArgument = Annotated[str, argument("Name of the adapter, as requests give it.")]
RegistryOption = Annotated[
    Path, option("The registry; adapters lie in its folder.", "--registry", metavar="FILE")
]
DEFAULT = Path("adapters.json")


def list_(registry: RegistryOption = DEFAULT, json: JsonOption = False) -> None:
    """List adapters and their versions.

    \b
    Example: prep adapter list --registry adapters/adapters.json
    """
    adapters = VersionRegistry(registry).read()
    if json:
        return terminal.print_json({name: history.model_dump() for name, history in adapters.items()})
    rows = [
        (name, number, "in use" if history.promoted[-1:] == [number] else "", version.created, version.path)
        for name, history in sorted(adapters.items())
        for number, version in sorted(history.versions.items())
    ]
    left = ("", "created", "folder")
    table = terminal.table("adapter", "version", *left, left=left, rows=rows)
    terminal.out().print(table)
    terminal.next_command(f"prep serve shop --lora-registry {registry}", "serves the versions in use")


def add(
    name: NameArgument,
    folder: Annotated[Path, argument("Folder in PEFT's layout.")],
    registry: RegistryOption = DEFAULT,
) -> None:
    """Add a folder as the next version of an adapter. Nothing changes for clients until it is promoted.

    \b
    Example: prep adapter add support adapters/support-2 --registry adapters/adapters.json
    """
    number = VersionRegistry(registry).add(name, folder)
    terminal.say(f"{name}: version {number} added")
    terminal.next_command(f"prep adapter promote {name} --registry {registry}", "puts it in use")


def promote(
    name: NameArgument,
    version: Annotated[int | None, option("Number of the version; by default the newest.", min=1)] = None,
    registry: RegistryOption = DEFAULT,
) -> None:
    """Put a version in use: running servers load it within about a second.

    \b
    Example: prep adapter promote support --version 2 --registry adapters/adapters.json
    """
    number = VersionRegistry(registry).promote(name, version)
    terminal.say(f"{name}: version {number} is in use")
    terminal.next_command(f"prep adapter rollback {name} --registry {registry}", "returns to the one before")


def rollback(name: NameArgument, registry: RegistryOption = DEFAULT) -> None:
    """Return to the version that was in use before.

    \b
    Example: prep adapter rollback support --registry adapters/adapters.json
    """
    terminal.say(f"{name}: version {VersionRegistry(registry).rollback(name)} is in use again")


HELP = """Keep versions of LoRA adapters; promote them and roll back.

\b
Examples:
  prep adapter add support adapters/support-2 --registry adapters/adapters.json
  prep adapter promote support --registry adapters/adapters.json
  prep adapter list --registry adapters/adapters.json
  prep serve shop --lora-registry adapters/adapters.json  follows promotions
"""

adapter = terminal.command_app(list_, add, promote, rollback, help=HELP)
