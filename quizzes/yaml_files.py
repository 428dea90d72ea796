"""Read folders of YAML: parse and check them once, then keep them as one JSON file until a file changes. Index them.

Parsing and checking 400 question files takes more than a second, reading the JSON a few hundredths. A broken file is
reported with its line and left out; the others load.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from prep_common.complaints import Complaint, complaints
from prep_common.names import unknown_name
from prep_common.paths import built_dir, cache_dir, write_atomically
from prep_common.yaml_text import YamlError, YamlFile

logger = logging.getLogger(__name__)
_FORMAT = 1
_PREP = Path(__file__).resolve().parents[1]
Checker = Callable[[dict[str, Any]], Any]
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class BadFile:
    """A file that cannot be used: its path, the line of the fault, and the reason."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True)
class Document:
    """A checked entry and its file. Everything that loads a folder shares `data`: change only a copy."""

    path: str
    data: dict[str, Any]


@dataclass(frozen=True)
class _Kept:
    """A cache file's content."""

    key: str
    documents: list[Document]
    bad: list[BadFile]


class UnknownId(ValueError):
    """Raised for an unknown id; the message names a similar one."""


@dataclass
class Index(Generic[Entry]):
    """Index entries by id; each whole entry is parsed when needed. Broken ones are listed only in `problems`."""

    entries: dict[str, Entry]
    problems: list[BadFile]
    documents: dict[str, Document]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self.entries

    def data(self, entry_id: str, problem: str, list_command: str) -> dict[str, Any]:
        """Return a whole entry as plain values. Raises UnknownId with this problem."""
        if entry_id in self.documents:
            return self.documents[entry_id].data
        raise UnknownId(unknown_name(problem, entry_id, self.documents, f"{list_command} shows all ids"))

    def digest(self, entry_id: str) -> str:
        """Return a hash of an entry's content: a log of answers is only read with the entry that was answered."""
        content = json.dumps(self.documents[entry_id].data, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def load(folder: Path, check: Checker, schema_files: Iterable[Path]) -> tuple[list[Document], list[BadFile]]:
    """Return the documents of `folder/**/*.yaml` and the bad files; a file holds one mapping or a list of them.

    check: raises ValueError (pydantic's, for instance) for invalid data. schema_files: a change in one of them
    invalidates the cache.
    """
    files = sorted(folder.glob("**/*.yaml"))
    key = _fingerprint([*files, *schema_files])
    name = hashlib.sha1(str(folder.resolve()).encode()).hexdigest()[:12]
    cached = _cache_folder(folder) / f"{folder.name}-{name}.json"
    content = _read_cache(cached, key)
    if content is None:
        read = [read_file(path, check, str(path.relative_to(folder))) for path in files]
        content = (
            [document for documents, _ in read for document in documents],
            [bad_file for _, bad in read for bad_file in bad],
        )
        _write_cache(cached, key, *content)
    return content


def _cache_folder(folder: Path) -> Path:
    """Files of prep are the same for every `PREP_HOME`."""
    with suppress(RuntimeError):  # a user without a home
        if folder.resolve().is_relative_to(_PREP):
            return built_dir() / "documents"
    return cache_dir()


def read_file(path: Path, check: Checker, shown: str | None = None) -> tuple[list[Document], list[BadFile]]:
    """Return the documents of one file, without the cache."""
    shown = shown or str(path)
    try:
        file = YamlFile(path)
    except YamlError as error:
        return [], [BadFile(shown, error.line or 1, str(error))]
    documents, bad = [], []
    data = file.value
    for index, entry in enumerate(data if isinstance(data, list) else [data]):
        at = (index,) if isinstance(data, list) else ()
        if not isinstance(entry, dict):
            text = (
                "the file is empty" if data is None else f"expected a mapping, found {type(entry).__name__}"
            )
            bad.append(BadFile(shown, file.line(at), text))
            continue
        try:
            check(entry)
        except ValueError as error:
            problems = [Complaint((), str(error))]
            if hasattr(error, "errors"):  # of pydantic, which this module does not import
                problems = complaints(error.errors())
            bad += [
                BadFile(shown, file.line((*at, *complaint.location)), complaint.text)
                for complaint in problems
            ]
        else:
            documents.append(Document(shown, entry))
    return documents, bad


def _fingerprint(files: Iterable[Path]) -> str:
    """Return a digest that changes when a file is added, removed or written."""
    digest = hashlib.sha1(str(_FORMAT).encode())
    for path in files:
        try:
            stat = path.stat()
        except OSError:
            continue
        digest.update(f"{path}\0{stat.st_mtime_ns}\0{stat.st_size}\n".encode())
    return digest.hexdigest()


def _read_cache(path: Path, key: str) -> tuple[list[Document], list[BadFile]] | None:
    """Return the cached result; None if it is missing, outdated or damaged."""
    try:
        written = path.stat()
        kept = _kept(path, (written.st_ino, written.st_size, written.st_mtime_ns))
        return (list(kept.documents), list(kept.bad)) if kept.key == key else None
    except OSError:
        return None
    except (ValueError, KeyError, TypeError):
        logger.warning("%s is damaged; rebuilding it", path)
        return None


@lru_cache(maxsize=8)
def _kept(path: Path, _written: tuple[int, int, int]) -> _Kept:
    """Parse a cache once per process until it is written again: sessions and pages load the same folders repeatedly."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    documents = [Document(**entry) for entry in kept["documents"]]
    return _Kept(kept["key"], documents, [BadFile(**entry) for entry in kept["bad"]])


def _write_cache(path: Path, key: str, documents: list[Document], bad: list[BadFile]) -> None:
    kept = {"key": key, "documents": [asdict(d) for d in documents], "bad": [asdict(b) for b in bad]}
    with suppress(OSError, TypeError):  # without a cache only time is lost
        write_atomically(path, json.dumps(kept, ensure_ascii=False))
