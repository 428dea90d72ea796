"""Folders that a guest may read: Python, its packages, the system's libraries, some packages of this checkout."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from prep_common.child_process import ROOT
from prep_common.paths import data_dir

SYSTEM = (
    "/usr", "/lib", "/lib64", "/bin", "/etc", "/opt/rocm", "/proc/cpuinfo", "/proc/meminfo",
    "/proc/stat", "/sys/devices/system", "/sys/fs/cgroup", "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random",
    "/System/Library", "/Library/Developer",
)  # fmt: skip
OWN = ("prep_common", "kernels", "engine", "lessons/given")
"""Packages of this checkout that learner code may import, unless a guest names others."""


def import_path() -> list[str]:
    """Return the folders with installed packages."""
    return [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]


def readable(own: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the files and folders to read, and those to list; `own`: packages of this checkout, as folders."""
    python = [sys.prefix, sys.base_prefix, sysconfig.get_path("stdlib"), *import_path(), sys.executable]
    packages = [ROOT / name for name in (*own, "prep_common/guest")]
    files = [parent / "__init__.py" for path in packages for parent in path.parents if parent > ROOT]
    installed = str(ROOT) in import_path()
    private = (
        [*(ROOT / name for name in ("quizzes", "lessons", "app")), data_dir()]
        if installed
        else [ROOT, data_dir()]
    )
    allowed: list[str] = []
    listed = {str(ROOT), *(str(path.parent) for path in packages if path.parent != ROOT)}
    for tree in dict.fromkeys(Path(os.path.realpath(place)) for place in (*SYSTEM, *python)):
        _without(tree, [path.resolve() for path in private], allowed, listed)
    allowed.append("/proc/self")  # resolved by the guest: it is the folder of the process that reads it
    return [*allowed, *map(str, packages), *map(str, files)], sorted(listed)


def _without(tree: Path, private: Iterable[Path], allowed: list[str], listed: set[str]) -> None:
    """Allow a folder except the private parts in it."""
    inner = [path for path in private if path == tree or tree in path.parents]
    if not inner:
        allowed.append(str(tree))
    elif tree not in inner:
        listed.add(str(tree))
        for child in sorted(tree.iterdir()):
            if child.is_symlink():
                target = child.resolve()
                if any(path in (target, *target.parents) or target in path.parents for path in inner):
                    continue
            _without(child, inner, allowed, listed)
