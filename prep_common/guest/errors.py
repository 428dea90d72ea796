"""Exceptions that cross between checker and guest keep the builtin classes they belong to."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from functools import cache

_NEVER = {"BaseException", "Exception", "StopIteration", "StopAsyncIteration", "GeneratorExit", "KeyboardInterrupt",
          "SystemExit", "BaseExceptionGroup", "ExceptionGroup"}  # fmt: skip


def family(error: BaseException) -> list[str]:
    """Return the names of the builtin classes of an exception, the narrowest first."""
    return [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]


@cache
def _class(base: type[Exception], name: str) -> type[Exception]:
    other = getattr(builtins, name)
    # Some builtin exceptions, such as UnicodeEncodeError, cannot be made without their arguments.
    own = {"__init__": base.__init__, "__str__": base.__str__, "__module__": base.__module__}
    return type(base.__name__, (base, other), own)


def class_like(base: type[Exception], names: Sequence[object]) -> type[Exception]:
    """Return a class of `base` that is also the first builtin exception of `names`, so that `except` finds it."""
    for name in names:
        known = getattr(builtins, name, None) if isinstance(name, str) and name not in _NEVER else None
        if isinstance(known, type) and issubclass(known, Exception):
            return _class(base, str(name))  # type: ignore[arg-type]
    return base
