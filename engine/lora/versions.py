"""Versions of adapters in a file: add, promote, roll back; a server loads the promoted ones.

    {"adapters": {"support": {"promoted": [1, 2],
                              "versions": {"1": {"path": "support/v1", "sha256": "...", "created": "..."}, "2": ...}}}}

The last number under `promoted` is the version in use, those before it are what a rollback returns to. Paths are
relative to the file's folder and may not leave it. The checksum is that of the folder's manifest
(`engine.zoo.manifest`); a version whose files changed since is never promoted or served. Changes are atomic, and two
commands at once wait for each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.lora.request import LoRAError
from engine.zoo.manifest import manifest_of
from prep_common.complaints import complain
from prep_common.names import unknown_name
from prep_common.paths import write_atomically
from prep_common.text_file import UnreadableFile, read_text

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Version(_Model):
    """One version of an adapter."""

    path: str = Field(min_length=1)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    created: str


class AdapterVersions(_Model):
    """All versions of an adapter. promoted: the version in use last, those before it oldest first."""

    promoted: list[int] = []
    versions: dict[int, Version] = {}


class _File(_Model):
    adapters: dict[str, AdapterVersions] = {}


class VersionRegistry:
    """A file of adapter versions."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._root = file.parent.resolve()

    def read(self) -> dict[str, AdapterVersions]:
        """Return all adapters by name. Raises LoRAError for a file that is missing or malformed."""
        try:
            adapters = _File.model_validate(json.loads(read_text(self.file))).adapters
        except UnreadableFile as error:
            if self.file.exists():
                raise LoRAError(str(error)) from None
            raise LoRAError(
                f"there is no adapter registry {self.file}; create it with: {self._to_add('NAME')}"
            ) from None
        except ValidationError as error:
            raise LoRAError(f"{self.file}: {complain(error.errors(), _File)}") from None
        except (ValueError, RecursionError) as error:
            raise LoRAError(f"{self.file} is not JSON: {error}") from None
        for name, adapter in adapters.items():
            if unknown := [number for number in adapter.promoted if number not in adapter.versions]:
                raise LoRAError(
                    f"{self.file}: {name!r} promotes version {unknown[0]}, which it does not list"
                )
        return adapters

    def add(self, name: str, folder: Path) -> int:
        """Add a folder as the next version of an adapter; return its number. It is not promoted."""
        if not NAME.fullmatch(name):
            raise LoRAError(f"{name!r} cannot name an adapter; use letters, digits, '.', '_' and '-'")
        inside = self._inside(folder)
        if not (inside / "adapter_config.json").is_file():
            raise LoRAError(f"{folder} is not an adapter: it has no adapter_config.json")
        with self._change() as adapters:
            adapter = adapters.setdefault(name, AdapterVersions())
            number = max(adapter.versions, default=0) + 1
            adapter.versions[number] = Version(
                path=inside.relative_to(self._root).as_posix(),
                sha256=checksum(inside),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        return number

    def promote(self, name: str, number: int | None = None) -> int:
        """Make a version the one in use, by default the newest; return its number."""
        with self._change() as adapters:
            adapter = self._find(adapters, name)
            number = max(adapter.versions) if number is None else number
            self.verified(name, self._version(adapter, name, number))
            if adapter.promoted[-1:] != [number]:
                adapter.promoted.append(number)
        return number

    def rollback(self, name: str) -> int:
        """Return to the version that was in use before; return its number."""
        with self._change() as adapters:
            adapter = self._find(adapters, name)
            if len(adapter.promoted) < 2:
                raise LoRAError(f"adapter {name!r} has no earlier promoted version to return to")
            number = adapter.promoted[-2]
            self.verified(name, adapter.versions[number])
            adapter.promoted.pop()
        return number

    def promoted(self) -> dict[str, tuple[int, Version]]:
        """Return the version in use of each adapter that has one."""
        return {
            name: (adapter.promoted[-1], adapter.versions[adapter.promoted[-1]])
            for name, adapter in self.read().items()
            if adapter.promoted
        }

    def verified(self, name: str, version: Version) -> Path:
        """Return a version's folder. Raises LoRAError if it is gone, elsewhere, or its files have changed."""
        folder = self._inside(self._root / version.path)
        if (digest := checksum(folder)) != version.sha256:
            raise LoRAError(
                f"adapter {name!r}: the files in {folder} have checksum {digest[:12]}…, expected "
                f"{version.sha256[:12]}…; restore them, or add them as a new version"
            )
        return folder

    def _inside(self, folder: Path) -> Path:
        resolved = folder.resolve()
        if not resolved.is_relative_to(self._root) or resolved == self._root:
            raise LoRAError(
                f"{folder} lies outside {self._root}, the folder of {self.file.name}; copy it there"
            )
        if not resolved.is_dir():
            why = "is not a folder" if folder.exists() else "does not exist"
            raise LoRAError(f"{folder} {why}; name the folder of an adapter in PEFT's layout")
        return resolved

    def _find(self, adapters: dict[str, AdapterVersions], name: str) -> AdapterVersions:
        if name not in adapters or not adapters[name].versions:
            listed = sorted(key for key, adapter in adapters.items() if adapter.versions)
            hint = "" if listed else f"it is empty; add one with: {self._to_add(name)}"
            raise LoRAError(unknown_name(f"{self.file} has no adapter", name, listed, hint))
        return adapters[name]

    def _to_add(self, name: str) -> str:
        return f"prep adapter add {name} FOLDER --registry {self.file}"

    def _version(self, adapter: AdapterVersions, name: str, number: int) -> Version:
        if number not in adapter.versions:
            known = ", ".join(map(str, sorted(adapter.versions)))
            raise LoRAError(f"adapter {name!r} has no version {number}; it has: {known}")
        return adapter.versions[number]

    @contextmanager
    def _change(self) -> Iterator[dict[str, AdapterVersions]]:
        """Yield the adapters to change, and write them if the block ends without an error."""
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / f".{self.file.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            adapters = self.read() if self.file.exists() else {}
            yield adapters
            value: dict[str, Any] = _File(adapters=adapters).model_dump(mode="json")
            write_atomically(self.file, json.dumps(value, indent=2) + "\n")


def checksum(folder: Path) -> str:
    """Return the sha256 of a folder's manifest."""
    return hashlib.sha256(manifest_of(folder).encode()).hexdigest()
