"""Objects of the checker that learner code may call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_SEQUENCE = ("__getitem__", "__len__", "__iter__", "__setitem__", "__contains__")


@dataclass(frozen=True)
class Lent:
    """An object, and which of its methods and attributes the guest may use."""

    value: Any
    name: str
    methods: tuple[str, ...]
    attributes: tuple[str, ...] = ()

    def use(self, method: str, args: list[Any], keywords: dict[str, Any]) -> Any:
        """Call a method, or read an attribute. Raises AttributeError for what is not lent."""
        if method == "":
            (name,) = args
            if name not in self.attributes:
                raise AttributeError(f"{self.name} has no attribute {name!r} here")
            return getattr(self.value, name)
        if method not in self.methods:
            raise AttributeError(f"{self.name} has no method {method!r} here")
        result = getattr(self.value, method)(*args, **keywords)
        return list(result) if method == "__iter__" else result


def callback(function: Callable[..., Any]) -> Lent:
    """Lend a function: learner code calls it, and it runs here."""
    return Lent(function, getattr(function, "__name__", "function"), ("__call__",))


def expose(value: Any, methods: Sequence[str] = (), attributes: Sequence[str] = ()) -> Lent:
    """Lend an object with these methods and attributes; of a sequence also items and length."""
    extra = tuple(name for name in _SEQUENCE if hasattr(type(value), name) and name not in methods)
    is_sequence = "__getitem__" in extra
    name = type(value).__name__
    return Lent(value, name, (*methods, *(extra if is_sequence else ())), tuple(attributes))
