"""The guest's end of the pipe, and proxies for objects that the checker lends."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

from prep_common.guest import codec
from prep_common.guest.errors import class_like

MAX_BYTES = 1 << 30


class Objects(Protocol):
    """Knows the guest's objects by number."""

    def reference(self, value: Any) -> dict[str, Any]: ...
    def refer(self, reference: dict[str, Any]) -> Any: ...


class CheckerError(Exception):
    """Raised by the checker's object while learner code used it."""

    number = -1

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class Link:
    """Frames from and to the checker. Learner code runs in the main thread, and calls the checker from it."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self.objects: Objects
        self.number = 0
        self.max_bytes = MAX_BYTES
        self._thread = threading.get_ident()

    def read(self) -> list[Any]:
        """Return the next message. The process ends if the checker hung up."""
        size, num_blobs = codec.HEADER.unpack(self._exactly(codec.HEADER.size))
        text = self._exactly(size)
        return list(codec.decode(text, self._exactly(num_blobs), self.objects.refer))

    def write(self, message: list[Any]) -> None:
        """Write a message. Raises TooLarge, TypeError, and writes nothing then."""
        data = memoryview(codec.encode(message, self.objects.reference, self.max_bytes))
        while data:
            data = data[os.write(self._write, data) :]

    def call_checker(self, target: int, method: str, args: Any, keywords: dict[str, Any]) -> Any:
        """Call a method of an object of the checker, and return its value."""
        if threading.get_ident() != self._thread:
            raise RuntimeError("call what the checker passed from the main thread only")
        self.write([self.number, "call", target, method, list(args), keywords])
        _, kind, *answer = self.read()
        if kind == "ok":
            return answer[0]
        names, message, number = answer
        error = class_like(CheckerError, names)(message)
        error.number = number  # type: ignore[attr-defined]
        raise error

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            data = os.read(self._read, min(size, 1 << 20))
            if not data:
                os._exit(0)
            parts.append(data)
            size -= len(data)
        return b"".join(parts)


def proxy(link: Link, target: int, name: str, methods: list[str], attributes: list[str]) -> Any:
    """Return an object whose methods are those of an object of the checker."""
    members: dict[str, Any] = {method: _method(link, target, method) for method in methods}
    members |= {attribute: _attribute(link, target, attribute) for attribute in attributes}
    members["__repr__"] = lambda _: f"<{name} of the checker>"
    members["_lent"] = target
    return type(name, (), members)()


def _method(link: Link, target: int, method: str) -> Callable[..., Any]:
    def call(_: Any, *args: Any, **keywords: Any) -> Any:
        result = link.call_checker(target, method, args, keywords)
        return iter(result) if method == "__iter__" else result

    call.__name__ = method
    return call


def _attribute(link: Link, target: int, name: str) -> property:
    return property(lambda _: link.call_checker(target, "", [name], {}))
