"""An object of the guest, as the checker holds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

_MAX_LENGTH = 10_000_000


class Owner(Protocol):
    """The guest of a handle."""

    def ask(self, operation: str, *args: Any) -> Any: ...
    def release(self, number: int) -> None: ...


class Handle:
    """A reference to an object of the guest. Using it asks the guest; what comes back is a value or a handle.

    Two handles are equal if they name the same object: no method of learner code decides about equality. For the
    same reason `in` compares the items here.
    """

    __slots__ = ("__weakref__", "_guest", "_name", "_number")

    def __init__(self, guest: Owner, number: int, name: str) -> None:
        self._guest, self._number, self._name = guest, number, name

    def call(self, name: str, /, *args: Any, **keywords: Any) -> Any:
        """Call a method."""
        return self._guest.ask("call", self, name, list(args), keywords)

    def get(self, name: str) -> Any:
        """Return an attribute."""
        return self._guest.ask("get", self, name)

    def set(self, name: str, value: Any) -> None:
        """Set an attribute."""
        self._guest.ask("set", self, name, value)

    def has(self, name: str) -> bool:
        """Return whether there is such an attribute."""
        return self._guest.ask("has", self, name) is True

    def content(self) -> Any:
        """Return a copy of a container, or the attributes of an object as a dict."""
        return self._guest.ask("content", self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in Handle.__slots__:
            object.__setattr__(self, name, value)
        else:
            self.set(name, value)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.call("", *args, **keywords)

    def __len__(self) -> int:
        if not self.has("__len__"):
            raise TypeError(f"{self._name} has no length")
        length = self.call("__len__")
        if type(length) is not int or not 0 <= length <= _MAX_LENGTH:
            raise ValueError(f"__len__ of {self._name} returned {length!r:.60}, not a length")
        return length

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> Any:
        return self.call("__getitem__", index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.call("__setitem__", index, value)

    def __iter__(self) -> Iterator[Any]:
        iterator = self._guest.ask("iter", self)
        while item := self._guest.ask("next", iterator):
            yield item[0]

    def __contains__(self, value: Any) -> bool:
        return any(item is value or item == value for item in self)

    def __repr__(self) -> str:
        return f"<{self._name} of the guest>"

    def __del__(self) -> None:
        self._guest.release(self._number)
