"""An object that lives in a process of its own and is called by name.

    this process                              python -m engine.exec.process 7
    RemoteProcess(factory, *args)  ------->   target = factory(*args)
    .send("step", x) = 1           ------->   target.step(x)
    .receive()                     <-------   (1, result or exception)

Calls are answered in the order in which they came. Both ends hold a socket that nobody else has, so each learns at
once when the other is gone: the child ends by itself, the parent reads the exit code.

A fresh interpreter, not a fork: forking a process whose libraries have threads is not safe. And no
`multiprocessing.Process`, which would run the user's script again in every child.
Source: WorkerProc in vLLM v1/executor/multiproc_executor.py.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

_GRACE_S = 5.0
"""How long a process may take to end once it was told to."""


class ProcessEnded(RuntimeError):
    """The other process is gone."""

    def __init__(self, name: str, exit_code: int | None, why: str | None = None) -> None:
        """why: what is known besides the exit code."""
        super().__init__(f"{name} {why or _describe_exit(exit_code)}")
        self.exit_code = exit_code
        """As of `subprocess`: negative for a signal."""


class RemoteProcess:
    """Starts the process; `receive` once to know that the object was built.

    The factory, arguments and results travel as pickles. An exception in the child is raised by `receive`.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[..., Any],
        *args: Any,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """name: for messages about it. environment: variables to set beside this process's own."""
        self.name = name
        self._call_ids = count()
        self._connection, theirs = Pipe()
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engine.exec.process", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        )
        theirs.close()
        self._end = weakref.finalize(self, _end, self._connection, self._process)
        self._write((next(self._call_ids), True, factory, args))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, method: str, *args: Any, answered: bool = True) -> int:
        """Call a method; returns the number under which `receive` brings its result.

        answered=False: the result is not sent back. An exception is.
        """
        call_id = next(self._call_ids)
        self._write((call_id, answered, method, args))
        return call_id

    def send_late(self, value: Any) -> None:
        """What a method that is running, or about to, gets from `Channel.receive_late`."""
        self._write((None, False, "", (value,)))

    def receive(self) -> tuple[int, Any]:
        """The next result, and the number of its call. Waits.

        Raises what the call raised, or ProcessEnded.
        """
        try:
            call_id, is_result, value = self._connection.recv()
        except (EOFError, ConnectionError):
            raise ProcessEnded(self.name, self.exit_code()) from None
        if not is_result:
            raise value
        return call_id, value

    def exit_code(self, timeout: float = _GRACE_S) -> int | None:
        """Of a process that ends within so many seconds, else None."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Let the process end; called again, this does nothing."""
        self._end()

    def kill(self) -> None:
        """End the process now, whatever it does."""
        self._process.kill()
        self._end()

    def _write(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except ConnectionError:
            raise ProcessEnded(self.name, self.exit_code()) from None


def wait_for_any(processes: Sequence[RemoteProcess], timeout: float | None = None) -> list[RemoteProcess]:
    """Those whose `receive` would return (or raise) at once: at least one, unless `timeout` seconds pass."""
    ready = wait([process._connection for process in processes], timeout)
    return [process for process in processes if process._connection in ready]


def _end(connection: Connection, process: subprocess.Popen[bytes]) -> None:
    """Close our end, which tells the process to go, and see it off."""
    connection.close()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "closed its connection but does not end"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name} (exit code {code})"
    return f"ended with exit code {code}"


# In the child


class Channel:
    """The child's end. A factory marked `wants_channel` gets it as its first argument."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def receive_late(self) -> Any:
        """What the parent passes with `send_late`."""
        _, _, _, (value,) = self._connection.recv()
        return value

    def serve(self) -> None:
        """Build the object and answer calls until the parent hangs up."""
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
                self._connection.send((call_id, False, _portable(error)))
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


def _portable(error: Exception) -> Exception:
    """The exception itself if it survives the journey, else one with its text; with the traceback as a note."""
    note = "in the worker process:\n" + "".join(traceback.format_exception(error))
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = RuntimeError(f"{type(error).__name__}: {error}")
    copy.add_note(note)
    return copy


def main() -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches every process of a terminal; the parent decides
    try:
        Channel(Connection(int(sys.argv[1]))).serve()
    except (EOFError, ConnectionError):  # the parent is gone in the middle of a call
        pass
    # At once: what libraries do at the end of a process may wait for peers that are gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    # Run as a module of its own, this file is __main__: import it under its real name for pickles.
    from engine.exec.process import main as _main

    _main()
