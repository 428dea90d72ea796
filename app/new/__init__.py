"""Skeletons of new items. Each module here is a kind, `prep new KIND NAME`, and defines

    def skeleton(name: str) -> dict[str, str]     path of each file, relative to the root -> its text
    NEXT: str                                     what to do next, in at most six lines: a command, two spaces, why;
                                                  the linters follow
    NAMED = "TOPIC.NAME"                          form of the name, if it has two parts
    FORMS = ("predict", "choice")                 values of --form, the first is the default: skeleton(name, form)
    FORM = "kind"                                 what a form is

In NEXT, NAME stands for the name, HYPHENED for the name with hyphens, TITLE for the one of classes, FOLDER for the
folder of the first file, and PYTHON for this interpreter.
"FILL IN ..." stands where the author writes. `skeleton` raises ValueError for a name that is taken. Until the item is
complete, its tests fail and name what is missing. Taken says which files to delete to start again.
"""

from __future__ import annotations

import keyword
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from prep_common.names import closest, unknown_name

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 20
"""Characters of a name: the lines of a skeleton have room for so many."""
KINDS = tuple(sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py")))
LINTERS = "prep test  linters, types, and every test that it reaches"
"""The last next step of all kinds."""


class Taken(ValueError):
    """There is an item of this name. paths: its files or its folder, if `prep new` wrote it."""

    def __init__(self, what: str, *paths: str) -> None:
        super().__init__(what)
        self.paths = paths


class NotPossible(ValueError):
    """The item cannot be written; the message says why. next_step: what to do."""

    def __init__(self, why: str, next_step: str) -> None:
        super().__init__(why)
        self.next_step = next_step


@dataclass(frozen=True)
class Item:
    """A skeleton: files by path, relative to the root, and what to do next.

    by_default: says which form was taken without --form, and which others there are.
    """

    files: dict[str, str]
    next_steps: list[str]
    by_default: str = ""


def make(kind: str, name: str, form: str | None = None) -> Item:
    """Return the skeleton of an item. Raises NotPossible for an unknown kind, a bad name, or an unknown form."""
    if kind not in KINDS:
        raise NotPossible(
            unknown_name("unknown kind", kind, KINDS, f"known: {', '.join(KINDS)}"), "prep new --help"
        )
    module = import_module(f"{__name__}.{kind}")
    name = _checked(name, getattr(module, "NAMED", "NAME"), kind)
    forms = forms_of(kind)
    if form is not None and form not in forms:
        known = f"known: {', '.join(forms) or 'none'}"
        right = f" --form {closest(form, forms) or forms[0]}" if forms else ""
        raise NotPossible(
            unknown_name(f"a {kind} has no form", form, forms, known), f"prep new {kind} {name}{right}"
        )
    try:
        files = module.skeleton(name, form or forms[0]) if forms else module.skeleton(name)
    except Taken as error:
        raise NotPossible(str(error), _start_again(error.paths)) from None
    except ValueError as error:
        raise NotPossible(str(error), "choose another name") from None
    by_default = ""
    if forms and form is None:
        by_default = f"{module.FORM}: {forms[0]}; others: --form {', '.join(forms[1:])}"
    return Item(files, [*_next_steps(module.NEXT, name, files), LINTERS], by_default)


def forms_of(kind: str) -> tuple[str, ...]:
    """Return the values of --form for a kind, the default first; empty if it has none."""
    return getattr(import_module(f"{__name__}.{kind}"), "FORMS", ())


def _start_again(paths: Iterable[str], root: Path = ROOT) -> str:
    """Return the next step for a name that is taken: which of the paths to delete, if none is in the repository."""
    there = [path for path in paths if os.path.lexists(root / path)]
    if not there or not _is_checkout(root) or _is_tracked(there, root):
        return "choose another name"
    return f"choose another name; to start yours again, delete {', '.join(there)}"


def _is_checkout(root: Path) -> bool:
    return (root / "pyproject.toml").is_file() and (root / "tests").is_dir()


def _is_tracked(paths: list[str], root: Path) -> bool:
    """Return whether git has a file of these paths, or cannot say: no git, or the repository is not ours."""
    if not (root / ".git").exists():
        return True
    try:
        listed = subprocess.run(["git", "ls-files", "--", *paths], cwd=root, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return True
    return bool(listed.stdout)


def _interpreter() -> str:
    """Return this Python for a command in the root, such as .venv/bin/python."""
    path = Path(sys.executable)
    return shlex.quote(str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path))


def _next_steps(text: str, name: str, files: dict[str, str]) -> list[str]:
    """Return the lines of NEXT with the names in place."""
    places = {
        "NAME": name,
        "HYPHENED": name.replace("_", "-"),
        "TITLE": name.title().replace("_", ""),
        "FOLDER": Path(next(iter(files))).parent.name,
        "PYTHON": _interpreter(),
    }
    for place, value in places.items():
        text = re.sub(rf"\b{place}\b|(?<=_){place}(?=_)", value, text)
    return text.splitlines()


def _checked(name: str, named: str, kind: str) -> str:
    """Return a name in lower case with underscores. Raises NotPossible."""
    parts = name.lower().replace("-", "_").split(".")
    right = len(parts) == len(named.split("."))
    if not right or not all(re.fullmatch(r"[a-z][a-z0-9_]*", part) for part in parts):
        rule = "lower-case letters, digits and underscores, a letter first"
        example = f"prep new {kind} {'memory.' * named.count('.')}my_{kind}"
        raise NotPossible(f"{name!r} is not a name; use {named}: {rule}", example)
    if len(parts[-1]) > LONGEST:
        raise NotPossible(f"{parts[-1]!r} has more than {LONGEST} characters", "choose a shorter name")
    if reserved := [part for part in parts if keyword.iskeyword(part)]:
        raise NotPossible(f"{reserved[0]!r} is a word of Python's", "choose another name")
    return ".".join(parts)


def check_room(item: Item, root: Path = ROOT) -> None:
    """Raise NotPossible if a file of an item exists or `root` is not a checkout."""
    if not _is_checkout(root):
        where = "git clone the repository, and run ./prep new there"
        raise NotPossible(f"prep is installed without its source tree: {root} is not a checkout", where)
    if existing := [path for path in item.files if os.path.lexists(root / path)]:
        raise NotPossible(
            f"already there: {', '.join(existing)}; nothing was written", _start_again(existing, root)
        )


def write(item: Item, root: Path = ROOT) -> None:
    """Write all files of an item, or none. Raises NotPossible as `check_room`, OSError if one cannot be written."""
    check_room(item, root)
    written: list[Path] = []
    folders = {folder for path in item.files for folder in (root / path).parents if not folder.exists()}
    try:
        for path, text in item.files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            with open(root / path, "x", encoding="utf-8") as file:
                written.append(root / path)
                file.write(text)
    except OSError:
        for made in written:
            made.unlink()
        for folder in sorted(folders, reverse=True):
            if folder.is_dir():
                folder.rmdir()
        raise
