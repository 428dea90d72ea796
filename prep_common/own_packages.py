"""Find prep's packages where another file or distribution has the same name.

Our packages have short names. A user may keep a `kernels.py` beside a script, and Hugging Face's package `kernels` may
be installed; Python imports what comes first in sys.path. Every package of ours calls `enter`, which lets it find the
packages on lower floors, and lets a program that wants the other module of its name find that one through ours:

    from engine import LLM            # engine uses prep's `kernels`
    from kernels import my_softmax    # of kernels.py beside the script: prep's package has no such name

Two limits: a file hides the first package of ours that a program imports, such as an `engine.py` beside it; and what
looks into `sys.modules`, or assigns to the module, meets ours. docs/installation.md lists the cases.
"""

from __future__ import annotations

import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kernels", "engine", "quizzes", "lessons", "interview", "app")
"""In order of their floors: each imports only those before it, and prep_common, whose name nothing else has."""

_claimed: set[str] = set()
_entered: dict[str, ModuleType] = {}
_others: dict[str, ModuleType] = {}
"""Modules of others, by the name that they share with a package of ours."""


class _Finder:
    """Finds claimed packages beside prep_common, before sys.path is searched."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _claimed:
            return None
        folder = ROOT / name
        return spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])


def claim(*names: str) -> None:
    """Let imports of these packages find ours from now on, whatever sys.path holds.

    Raises ImportError if a module of another package is imported already whose name one of ours has as well.
    """
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
    for name in names:
        _claimed.add(name)
        other = sys.modules.get(name)
        if other is not None and not _is_ours(name, other):
            _set_aside(name, other)


def _is_ours(name: str, module: ModuleType) -> bool:
    """Return whether this is our package, which another thread may be importing: that one has not entered yet."""
    return getattr(getattr(module, "__spec__", None), "origin", None) == str(ROOT / name / "__init__.py")


def enter(name: str) -> Callable[[str], Any]:
    """Claim the packages below `name`, which calls this, and return its `__getattr__`.

    The function looks up the names that ours lacks in the other module of this name.
    """
    ours = _entered[name] = sys.modules[name]
    claim(*PACKAGES[: PACKAGES.index(name)])
    elsewhere = [entry for entry in sys.path if not Path(entry, "prep_common/own_packages.py").is_file()]
    spec = PathFinder.find_spec(
        name, elsewhere
    )  # not in another checkout of prep, whose package is none of others
    if name in _others:
        ours.__path__.extend(getattr(_others[name], "__path__", ()))
    elif spec is not None:
        ours.__path__.extend(spec.submodule_search_locations or ())
    if name in _others or (spec is not None and spec.origin is not None):
        vars(ours).pop("__version__", None)

    def find(attribute: str) -> Any:
        is_module = (ROOT / name / attribute).is_dir() or (ROOT / name / f"{attribute}.py").is_file()
        is_private = attribute.startswith("__") and attribute != "__version__"
        if not is_module and not is_private and (other := _others.get(name) or _load(spec)) is not None:
            return getattr(other, attribute)
        raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

    return find


def check_installation(name: str) -> None:
    """Import a package of ours. Raises ImportError if another distribution's files replaced it."""
    if import_module(name) is _entered.get(name):
        return
    raise ImportError(
        f"{ROOT / name} is not prep's package: another distribution of that name was installed over it. "
        "Install prep into an environment of its own; docs/installation.md says how",
        name=name,
    )


def _set_aside(name: str, other: ModuleType) -> None:
    """Let the next import of `name` find ours, which will have the names of `other`."""
    for module in [key for key in list(sys.modules) if key.startswith(f"{name}.")]:
        path = getattr(sys.modules[module], "__file__", None)
        parts = module.split(".")
        if any(ROOT.joinpath(*parts).with_suffix(suffix).exists() for suffix in ("", ".py")):
            raise ImportError(
                f"prep's module {module} cannot be imported: the program has imported {path} under this name. "
                "Rename that file, or import prep's package first",
                name=module,
            )
    _others[name] = other
    del sys.modules[name]


def _load(spec: ModuleSpec | None) -> ModuleType | None:
    """Run the module of others that `spec` describes; None if it is only a folder."""
    if spec is None or spec.origin is None or spec.loader is None:
        return None
    module = _others[spec.name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del _others[spec.name]
        raise
    return module


def run_module() -> None:
    """Claim all packages, then run the module that sys.argv names as `python -m` would."""
    claim(*PACKAGES)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def run_command() -> None:
    """Run the `prep` command. Entry point of the console script, since no file can hide prep_common.

    Until the modules of the command line are imported, Ctrl-C ends the process without a traceback.
    """
    interrupted = signal.getsignal(signal.SIGINT)
    if interrupted is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    claim(*PACKAGES)
    try:
        check_installation("kernels")
    except ImportError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(3)  # the environment, as in every command
    # By a name that tests/reach.py does not follow: else a change of any command would reach what imports this floor.
    command_line = import_module(f"{PACKAGES[-1]}.cli.main")
    signal.signal(signal.SIGINT, interrupted)
    command_line.main()


if __name__ == "__main__":
    from prep_common import own_packages

    own_packages.run_module()  # of the module that our packages import, not of this second copy
