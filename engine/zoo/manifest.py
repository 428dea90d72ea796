"""Checksums of a model's files, in the format of sha256sum: write them once, compare before serving.

    3b1f...  config.json
    9ac0...  model.safetensors

`sha256sum --check` reads the same file, but only this module also refuses files that the manifest does not name: an
added chat template or configuration changes a model's answers as a changed one does.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath

_LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")


class ManifestError(ValueError):
    """The manifest is malformed, or the model's files differ from it."""


def manifest_of(folder: Path) -> str:
    """Return the checksums of all files in a folder and its subfolders, sorted by name; hidden files are left out."""
    return "".join(f"{digest_of(file)}  {name}\n" for name, file in sorted(_files(folder).items()))


def check_manifest(folder: Path, text: str) -> int:
    """Compare a folder with its manifest; return the number of files. Raises ManifestError with all differences."""
    expected, present = read_manifest(text), _files(folder)
    problems = [f"{name} is missing" for name in sorted(expected.keys() - present.keys())]
    problems += [f"{name} is not in the manifest" for name in sorted(present.keys() - expected.keys())]
    for name in sorted(expected.keys() & present.keys()):
        if (digest := digest_of(present[name])) != expected[name]:
            problems.append(f"{name} has sha256 {digest[:12]}…, expected {expected[name][:12]}…")
    if problems:
        raise ManifestError(f"{folder} differs from its manifest: " + "; ".join(problems))
    return len(present)


def read_manifest(text: str) -> dict[str, str]:
    """Return file name -> sha256. Raises ManifestError for a line that is neither, a name given twice, or none."""
    named: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise ManifestError(f"line {number} is not `SHA256  FILE`: {line[:80]!r}")
        digest, name = match.groups()
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ManifestError(f"line {number} names a file outside the model's folder: {name[:80]!r}")
        if named.setdefault(name, digest) != digest:
            raise ManifestError(f"line {number} names {name[:80]!r} again with another checksum")
    if not named:
        raise ManifestError("the manifest names no files")
    return named


def digest_of(file: Path) -> str:
    """Return the sha256 of a file in hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _files(folder: Path) -> dict[str, Path]:
    files = {file.relative_to(folder): file for file in folder.rglob("*") if file.is_file()}
    return {
        name.as_posix(): file
        for name, file in files.items()
        if not any(part.startswith(".") for part in name.parts)
    }
