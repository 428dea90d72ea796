"""The checker's side of a guest process: start it, ask it, stop it at its limits."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from prep_common.guest import codec
from prep_common.sandbox import places
from prep_common.sandbox.errors import GuestNotStarted, GuestStopped, as_call, guest_error
from prep_common.sandbox.handle import Handle
from prep_common.sandbox.lent import Lent
from prep_common.sandbox.limits import Limits
from prep_common.sandbox.process import GuestProcess

_MAX_NESTING = 40
_REQUEST_BYTES = 1 << 30


class Guest:
    """Learner code in a process of its own. Leaving the `with` block ends it and removes its files.

    What it returns are values and handles. It never returns a verdict: the checks run here.
    """

    def __init__(
        self,
        files: Mapping[str, str | bytes],
        *,
        limits: Limits | None = None,
        imports: Sequence[str] = (),
        own: Sequence[str] = places.OWN,
        load: bool = True,
    ) -> None:
        """Start a guest and load its files.

        Args:
            files: contents by name. Names refer to the first one; it may import the others.
            limits: of time, memory and disk.
            imports: modules to import before the clock starts.
            own: packages of this checkout that learner code may import.
            load: load the files now; else `load()` does.

        Raises:
            GuestError: the first file cannot be loaded.
            GuestStopped: loading hit a limit, or ended the process.
            GuestNotStarted: it was stopped before any of the code ran.
        """
        self._limits = limits or Limits()
        self._handles: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()
        self._released: list[int] = []
        self._lent: list[Lent] = []
        self._numbers: dict[int, int] = {}
        self._errors: list[Exception] = []
        self._number = self._depth = self._calls = 0
        self._process: GuestProcess | None = None
        self._scratch = TemporaryDirectory(prefix="prep-guest-", ignore_cleanup_errors=True)
        scratch = Path(self._scratch.name).resolve()
        try:
            for name, content in files.items():
                place = scratch / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content.encode() if isinstance(content, str) else content)
            self._start(scratch, imports, own)
            self._files = list(files)
            if load:
                self.load()
        except BaseException:
            self.close()
            raise

    def _start(self, scratch: Path, imports: Sequence[str], own: Sequence[str]) -> None:
        try:
            self._process = GuestProcess(scratch, self._limits, imports)
            self._layers: list[str] = self._exchange("setup", [_setup(scratch, self._limits, imports, own)])
        except GuestStopped as stopped:
            raise GuestNotStarted(str(stopped)) from None
        self._process.start_clock()

    def load(self) -> None:
        """Load the files. Raises GuestError, GuestStopped."""
        self.ask("load", self._files, self._limits.value_megabytes << 20)

    @property
    def seconds_left(self) -> float:
        """Remaining seconds of `limits.seconds`; at most 0 after a stop for time."""
        return self._process.seconds_left if self._process else 0.0

    def call(self, name: str, /, *args: Any, **keywords: Any) -> Any:
        """Call a function of the first file, or `module:function`. A coroutine is run to its end.

        Raises GuestError, GuestStopped.
        """
        return self.ask("call", None, name, list(args), keywords)

    def new(self, name: str, /, *args: Any, **keywords: Any) -> Any:
        """Return a handle to a new instance of a class."""
        return self.call(name, *args, **keywords)

    def get(self, name: str) -> Any:
        """Return a value of the module."""
        return self.ask("get", None, name)

    def put(self, value: Any) -> Handle:
        """Copy a value into the guest and return a handle to the copy, for code that changes its argument."""
        handle = self.ask("put", value)
        assert isinstance(handle, Handle)
        return handle

    def has(self, name: str) -> bool:
        """Return whether the module has such a name, or `Class.method`."""
        return self.ask("has", None, name) is True

    def signature(self, name: str) -> str | None:
        """Return the parameters of a function or class as text, or None."""
        signature = self.ask("signature", None, name)
        return signature if isinstance(signature, str) else None

    def output(self) -> str:
        """Return what the guest printed so far, at most 64 KiB of it."""
        return self._process.output() if self._process else ""

    @property
    def layers(self) -> list[str]:
        """Layers of confinement that hold for this guest."""
        return list(self._layers)

    def close(self) -> None:
        """End the process and remove its files. A second call does nothing."""
        if self._process is not None:
            self._process.close()
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- messages

    def ask(self, operation: str, *args: Any) -> Any:
        """Let the guest do an operation of `prep_common.guest.server`. Raises GuestError, GuestStopped."""
        if self._depth >= _MAX_NESTING:
            raise self._stopped(f"called back and forth more than {_MAX_NESTING} levels deep")
        return self._exchange(operation, list(args))

    def release(self, number: int) -> None:
        """Let the guest forget an object at the next opportunity."""
        self._released.append(number)

    def _exchange(self, operation: str, args: list[Any]) -> Any:
        if self._process is None:
            raise GuestStopped("has not been started")
        with self._process.guest_time(operation):
            return self._converse(operation, args)

    def _converse(self, operation: str, args: list[Any]) -> Any:
        """Send a request and serve the guest's calls until its answer comes."""
        assert self._process is not None
        number = self._number = self._number + 1
        released = [handle for handle in self._released if handle not in self._handles]
        self._released.clear()
        self._process.write(self._encode([number, operation, released, *args]))
        while True:
            try:
                [answered, kind, *answer] = codec.decode(*self._process.read(), self._refer)
                if answered != number:
                    raise codec.BadFrame("an answer out of turn")
                if kind == "ok":
                    return answer[0]
                if kind == "error":
                    mine = answer[0]["checker"]
                    error = guest_error(answer[0]) if mine == -1 else self._errors[mine]
                elif kind == "call":
                    self._serve(number, *answer)
                    continue
                else:
                    raise codec.BadFrame("an unknown kind")
            except (codec.BadFrame, ValueError, TypeError, KeyError, IndexError, AttributeError) as bad:
                raise self._stopped(f"wrote to the checker's pipe ({bad})") from None
            if mine == -1 and not error.call:
                error.call = as_call(operation, args)
            raise error

    def _serve(
        self, number: int, target: int, method: str, args: list[Any], keywords: dict[str, Any]
    ) -> None:
        """Let the guest use what the checker lent, and send the result."""
        assert self._process is not None
        self._calls += 1
        if self._calls > self._limits.calls:
            raise self._stopped(f"called the checker more than {self._limits.calls:,} times")
        lent = self._lent[target]
        self._depth += 1
        try:
            with self._process.lent_time():
                answer = [number, "ok", lent.use(method, args, keywords)]
        except GuestStopped:
            raise
        except Exception as error:
            self._errors.append(error)
            family = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
            answer = [number, "error", family, str(error)[:2000], len(self._errors) - 1]
        finally:
            self._depth -= 1
        self._process.write(self._encode(answer))

    def _encode(self, message: list[Any]) -> bytes:
        return codec.encode(message, self._reference, _REQUEST_BYTES)

    def _reference(self, value: Any) -> dict[str, Any]:
        if isinstance(value, Handle) and value._guest is self:
            return {"t": "guest", "id": value._number}
        if not isinstance(value, Lent):
            raise TypeError(
                f"a {type(value).__name__} cannot go to a guest; pass callback(f) or expose(object)"
            )
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._lent)
            self._lent.append(value)
        methods, attributes = list(value.methods), list(value.attributes)
        return {"t": "host", "id": number, "name": value.name, "methods": methods, "attributes": attributes}

    def _refer(self, reference: dict[str, Any]) -> Any:
        number = reference["id"]
        if type(number) is not int:
            raise codec.BadFrame("not a reference")
        if reference["t"] == "host":
            return self._lent[number].value
        handle = self._handles.get(number)
        if handle is None:
            handle = self._handles[number] = Handle(self, number, str(reference["name"])[:80])
        return handle

    def _stopped(self, why: str) -> GuestStopped:
        assert self._process is not None
        return self._process.stop(why)


def _setup(scratch: Path, limits: Limits, imports: Sequence[str], own: Sequence[str]) -> dict[str, Any]:
    readable, listable = places.readable(own)
    return {
        "scratch": str(scratch),
        "path": places.import_path(),
        "imports": list(imports),
        "readable": readable,
        "listable": listable,
        "writable": [str(scratch), "/dev/null"],
        "megabytes": limits.megabytes,
        "disk_megabytes": limits.disk_megabytes,
    }


def confinement() -> list[str]:
    """Return the layers of confinement on this machine: what `prep doctor` reports."""
    with Guest({"learner.py": ""}) as guest:
        return guest.layers
