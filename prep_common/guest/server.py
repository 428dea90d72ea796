"""Operations of a guest for the checker: load files, call functions, read and write attributes, iterate."""

from __future__ import annotations

import inspect
import os
import sys
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

from prep_common.guest.codec import TooLarge
from prep_common.guest.errors import family
from prep_common.guest.link import CheckerError, Link, proxy

MAX_MESSAGE = 2000


class Server:
    """Objects of the guest by number, and the operations on them."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._objects: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}
        self._last = 0
        self._lent: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._main: Any = None
        self._files: dict[str, list[str]] = {}
        self._loop: Any = None
        self._do: dict[str, Callable[..., Any]] = {
            name: getattr(self, f"_{name}")
            for name in ("load", "call", "get", "set", "has", "signature", "content", "put", "iter", "next")
        }

    def serve(self) -> None:
        """Answer the checker until it hangs up."""
        link = self._link
        while True:
            [number, operation, released, *args] = link.read()
            for handle in released:
                if handle in self._objects:
                    self._numbers.pop(id(self._objects.pop(handle)), None)
            link.number = number
            try:
                answer = [number, "ok", self._do[operation](*args)]
            except (SystemExit, KeyboardInterrupt) as error:
                _leave(error)
            except BaseException as error:
                answer = [number, "error", self.describe(error)]
            try:
                link.write(answer)
            except (TooLarge, TypeError, ValueError, RecursionError, MemoryError) as error:
                told = {
                    **self.describe(error),
                    "message": f"the returned value is too large: {error}",
                    "line": 0,
                }
                link.write([number, "error", told])
            del answer

    def describe(self, error: BaseException) -> dict[str, Any]:
        """Return what the checker learns about an exception."""
        line, source = 0, ""
        if isinstance(error, SyntaxError) and os.path.basename(error.filename or "") in self._files:
            line, source = error.lineno or 0, error.text or ""
            message = error.msg or "invalid syntax"
        else:
            message = _text(error)
            trace = error.__traceback__
            while trace is not None:
                lines = self._files.get(os.path.basename(trace.tb_frame.f_code.co_filename))
                if lines is not None:
                    line = trace.tb_lineno
                    source = lines[line - 1] if 0 < line <= len(lines) else ""
                trace = trace.tb_next
        return {
            "type": str(type(error).__name__),
            "family": family(error),
            "message": message[:MAX_MESSAGE],
            "line": line,
            "source": str(source).strip()[:200],
            "checker": error.number if isinstance(error, CheckerError) else -1,
        }

    # -- references

    def reference(self, value: Any) -> dict[str, Any]:
        """Return the description of an object that stays here."""
        if type(value) is _Kept:
            value = value.value
        lent = vars(type(value)).get("_lent")
        if lent is not None and self._lent.get(lent) is value:
            return {"t": "host", "id": lent}
        number = self._numbers.get(id(value))
        if number is None:
            number = self._last = self._last + 1
            self._objects[number], self._numbers[id(value)] = value, number
        return {"t": "guest", "id": number, "name": type(value).__name__}

    def refer(self, reference: dict[str, Any]) -> Any:
        """Return the object that the checker names: one of the guest, or a proxy for one of the checker."""
        number = reference["id"]
        if reference["t"] == "guest":
            return self._objects[number]
        lent = self._lent.get(number)
        if lent is None:
            lent = proxy(self._link, number, reference["name"], reference["methods"], reference["attributes"])
            self._lent[number] = lent
        return lent

    # -- operations

    def _load(self, files: list[str], max_bytes: int) -> None:
        programs = [name for name in files if name.endswith(".py")]
        for name in programs:
            with open(name, encoding="utf-8") as file:
                self._files[os.path.basename(name)] = file.read().splitlines()
        self._link.max_bytes = max_bytes
        for name in reversed(programs):
            self._main = import_module(name.removesuffix(".py").replace("/", "."))

    def _find(self, target: Any, name: str) -> Any:
        """Return a member of an object; without object a name of the learner's module, or `module:name`."""
        if target is None:
            module, _, name = name.rpartition(":")
            target = import_module(module) if module else self._main
        for part in filter(None, name.split(".")):
            target = getattr(target, part)
        return target

    def _call(self, target: Any, name: str, args: list[Any], keywords: dict[str, Any]) -> Any:
        return self._finished(self._find(target, name)(*args, **keywords))

    def _get(self, target: Any, name: str) -> Any:
        return self._find(target, name)

    def _set(self, target: Any, name: str, value: Any) -> None:
        setattr(self._main if target is None else target, name, value)

    def _has(self, target: Any, name: str) -> bool:
        try:
            self._find(target, name)
        except (AttributeError, ImportError):
            return False
        return True

    def _signature(self, target: Any, name: str) -> str | None:
        try:
            return str(inspect.signature(self._find(target, name)))
        except (AttributeError, ImportError, TypeError, ValueError):
            return None

    def _content(self, target: Any) -> Any:
        """Return the parts of a container by value, a tensor or an array, or the fields of an object."""
        for module, name in (("torch", "Tensor"), ("numpy", "ndarray")):
            if isinstance(target, getattr(sys.modules.get(module), name, ())):
                return target
        for kind in (list, tuple, set, frozenset, dict):
            if isinstance(target, kind):
                return kind(target)
        if hasattr(target, "__dict__"):
            return dict(vars(target))
        return list(target)

    def _put(self, value: Any) -> Any:
        return _Kept(value)

    def _iter(self, target: Any) -> Any:
        return _Iterator(target.__aiter__() if hasattr(target, "__aiter__") else iter(target))

    def _next(self, target: Any) -> list[Any]:
        """Return the next item in a list; an empty list at the end."""
        iterator = target.iterator
        try:
            if hasattr(iterator, "__anext__"):
                return [self._finished(iterator.__anext__())]
            return [next(iterator)]
        except (StopIteration, StopAsyncIteration):
            return []

    def _finished(self, value: Any) -> Any:
        """Run a coroutine to its end; any other value is returned as it is."""
        if not (inspect.iscoroutine(value) or type(value).__name__ == "async_generator_asend"):
            return value
        import asyncio

        if self._loop is None:
            self._loop = asyncio.Runner()
        return self._loop.run(_await(value))


class _Kept:
    """A value to send as a reference although it could be copied."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Iterator:
    """An iterator that the checker drives."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator


async def _await(value: Any) -> Any:
    return await value


def _text(error: BaseException) -> str:
    try:
        return "".join(str(error))
    except BaseException:
        return "an error without a readable message"


def _leave(error: BaseException) -> None:
    """End as an interpreter does on SystemExit; never continue behind it."""
    code = error.code if isinstance(error, SystemExit) else 130
    sys.stdout.flush()
    os._exit(code & 0xFF if isinstance(code, int) else 0 if code is None else 1)
