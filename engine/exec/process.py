"""An object that lives in a process of its own and is called by name.

    this process                              python -m engine.exec.process 7
    RemoteProcess(factory, *args)  ------->   target = factory(*args)
    .send("step", x) = 1           ------->   target.step(x)
    .receive()                     <-------   (1, result or exception)

Calls are answered in order. When one end is gone, the child ends by itself and the parent raises `ProcessEnded`
(`prep_common.child_process`). Source: WorkerProc in vLLM v1/executor/multiproc_executor.py.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from prep_common.child_process import PipeChild
from prep_common.parent_link import serve_pipe


class RemoteProcess(PipeChild):
    """Start the process; `receive` once to know that the object was built.

    The factory, arguments and results travel as pickles. `receive` raises an exception of the child.
    """

    def __init__(
        self, name: str, factory: Callable[..., Any], *args: Any, environment: Mapping[str, str] | None = None
    ) -> None:
        """name: for messages about it. environment: variables to set besides those of this process."""
        super().__init__("engine.exec.process", name=name, environment=environment)
        self._call_ids = count()
        self.write((next(self._call_ids), True, factory, args))

    def send(self, method: str, *args: Any, answered: bool = True) -> int:
        """Call a method; return the number of the call. answered=False: only an exception is sent back, no result."""
        call_id = next(self._call_ids)
        self.write((call_id, answered, method, args))
        return call_id

    def send_late(self, value: Any) -> None:
        """Pass a value to `Channel.receive_late` in a method that is running or about to."""
        self.write((None, False, "", (value,)))

    def receive(self) -> tuple[int, Any]:
        """Wait for the next result; return (number of its call, result), or raise what it raised, or ProcessEnded."""
        call_id, is_result, value = self.read()
        if not is_result:
            raise value
        return call_id, value

    @classmethod
    def wait_for_any(cls, processes: Sequence[Self]) -> list[Self]:
        """Wait until `receive` of at least one would not wait; return all of these."""
        ready = wait([process.connection for process in processes])
        return [process for process in processes if process.connection in ready]


# In the child


class Channel:
    """The child's end. A factory marked `wants_channel` gets it as its first argument."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def receive_late(self) -> Any:
        """Wait for the value that the parent passes with `send_late`."""
        _, _, _, (value,) = self._connection.recv()
        return value

    def serve(self) -> None:
        """Build the object and answer calls until the parent closes the connection."""
        target: Any = None
        while True:
            try:
                message = self._connection.recv_bytes()
            except EOFError:
                return
            call_id, answered = None, True
            try:
                call_id, answered, method, args = _unpickle(message)
                if call_id is None:
                    continue  # came late for a call that did not wait for it
                if target is None:
                    first = (self,) if getattr(method, "wants_channel", False) else ()
                    target, result = method(*first, *args), None
                else:
                    result = getattr(target, method)(*args)
            except Exception as error:
                self._connection.send((call_id, False, portable(error)))
            else:
                if answered:
                    self._connection.send((call_id, True, result))


def _unpickle(message: bytes) -> Any:
    try:
        return pickle.loads(message)
    except (AttributeError, ImportError) as error:
        raise RuntimeError(
            f"a worker process cannot import what it needs: {error}. Classes and functions that are passed to "
            "the engine must live in a module, not in the script that is run"
        ) from error


def portable(error: Exception) -> Exception:
    """Return the exception if it can be pickled, else one with its text; add the traceback as a note."""
    note = "in the worker process:\n" + "".join(traceback.format_exception(error))
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(note)
    return copy


def main() -> None:
    serve_pipe(lambda connection: Channel(connection).serve())


if __name__ == "__main__":
    # Run as a module of its own, this file is __main__: import it under its real name for pickles.
    from engine.exec.process import main as _main

    _main()
