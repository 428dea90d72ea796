"""Child processes: start a Python module, talk to it, end it.

    JsonChild("app.debugger.fork_worker", name="the fork")      records as JSON, one a line, over stdin and stdout
    PipeChild("engine.exec.process", name="worker rank 0")      pickled objects over a socket pair

`prep_common.parent_link` is the child's side. Three rules hold for every child:

* It ends when this process ends, however that happens: its pipe breaks.
* Ctrl-C in a terminal does not reach it; this process decides.
* Its end is an exception here, `ProcessEnded`, with the exit code and the last lines it wrote to stderr.

A child is a fresh interpreter, not a fork: forking a process whose libraries have threads is not safe. And not a
`multiprocessing.Process`, which would run the user's script again in every child.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
GRACE_S = 5.0  # time a child has to end by itself after its pipe was closed
PYTHON_M = (sys.executable, "-P", "-m")
"""Start of a command that runs a module. -P: a file in the current folder does not hide one of ours."""
_LAST_BYTES = 20_000


class ProcessEnded(RuntimeError):
    """The other process is gone."""

    def __init__(
        self, name: str, exit_code: int | None, why: str | None = None, last_words: str = ""
    ) -> None:
        """why: replaces the description of the exit code. last_words: the end of what it wrote to stderr."""
        said = f": {last_words}" if last_words else ""
        super().__init__(f"{name} {why or describe_exit(exit_code)}{said}")
        self.exit_code = exit_code  # as in `subprocess`: negative for a signal; None if it does not end
        self.last_words = last_words


def describe_exit(code: int | None) -> str:
    """Return the predicate of a sentence about a process: "was killed by SIGKILL (exit code -9)"."""
    if code is None:
        return "closed its connection but does not end"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name} (exit code {code})"
    return f"ended with exit code {code}"


class ChildProcess:
    """A running child. Leaving a `with` block ends it, and so does the end of this process."""

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        name: str,
        args: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        inherit_environment: bool = True,
        grace_s: float = GRACE_S,
        own_group: bool = True,
        keep_stderr: bool = False,
        stop_signal: signal.Signals | None = None,
        connection: Connection | None = None,
        **popen: Any,
    ) -> None:
        """Start the process.

        Args:
            command: a module for this Python, which finds the checkout that we run from; or a whole command.
            name: subject of messages about it.
            args: of the module.
            environment: variables to set.
            inherit_environment: set the variables of this process too.
            grace_s: seconds for `close` to wait before it kills.
            own_group: start a process group, so that Ctrl-C in a terminal does not reach the child and ending it
                ends what it has started. Without, the child must ignore SIGINT itself.
            keep_stderr: write stderr to a temporary file, for `last_words`; else it is that of this process.
            stop_signal: sent by `close` instead of hanging up, which then means that this process was killed.
            connection: to hang up by `close`; by default stdin, if that is a pipe.
            popen: further arguments of `subprocess.Popen`.
        """
        self.name, self._own_group = name, own_group
        self._stderr = TemporaryFile() if keep_stderr else None
        if self._stderr is not None:
            popen["stderr"] = self._stderr
        variables = dict(os.environ) if inherit_environment else {}
        if isinstance(command, str):
            command = [*PYTHON_M, command, *args]
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        variables |= environment or {}
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            command, env=variables, start_new_session=own_group, **popen
        )
        pipe = connection or self._process.stdin
        self._end = weakref.finalize(self, _end, self._process, pipe, stop_signal, grace_s, own_group)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def exit_code(self, timeout: float | None = GRACE_S) -> int | None:
        """Return the exit code of a process that ends within so many seconds (None: wait for ever), else None."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, or to its whole group if it has one."""
        _signal(self._process, number, self._own_group)

    def close(self) -> None:
        """Hang up, wait for the process to end, kill it if it does not. A second call does nothing."""
        self._end()

    def kill(self) -> None:
        """End the process now, whatever it does, and what it started if it has a group."""
        self.send_signal(signal.SIGKILL)
        self._end()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        self.close() if error_type is None else self.kill()

    def last_words(self, num_lines: int = 1) -> str:
        """Return the last lines on stderr that are not empty, if they are kept."""
        if self._stderr is None:
            return ""
        size = os.fstat(self._stderr.fileno()).st_size
        written = os.pread(self._stderr.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES))
        lines = [line for line in written.decode(errors="replace").splitlines() if line.strip()]
        return "\n".join(lines[-num_lines:])

    def ended(self) -> ProcessEnded:
        """Return the error for a connection that broke; waits for the exit code."""
        return ProcessEnded(self.name, self.exit_code(), last_words=self.last_words())


class JsonChild(ChildProcess):
    """A child that reads and writes JSON records. One thread may write while another reads."""

    def __init__(self, command: str | Sequence[str], *, keep_stderr: bool = True, **options: Any) -> None:
        """Start the process, see ChildProcess."""
        self._buffer = bytearray()
        super().__init__(
            command, keep_stderr=keep_stderr, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
        )

    def write(self, record: Any) -> None:
        """Write a record. Raises ProcessEnded."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps(record).encode() + b"\n")
            stdin.flush()
        except (OSError, ValueError):  # ValueError: closed
            raise self.ended() from None

    def read(self, timeout: float | None = None) -> Any:
        """Return the next record, or None if none comes within so many seconds. Raises ProcessEnded."""
        stdout = self._process.stdout
        assert stdout is not None
        deadline = None if timeout is None else time.monotonic() + timeout
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([stdout], [], [], left)[0]:
                return None
            data = os.read(stdout.fileno(), 1 << 16)
            if not data:
                raise self.ended()
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return json.loads(line)

    def records(self) -> Iterator[Any]:
        """Yield records as they come. Raises ProcessEnded at the end, also after a clean one."""
        while True:
            yield self.read()


class PipeChild(ChildProcess):
    """A child that is started as `python -m MODULE FD` and speaks pickles through `connection`."""

    def __init__(self, module: str, **options: Any) -> None:
        """Start the process, see ChildProcess. It ignores Ctrl-C itself (`parent_link.serve_pipe`)."""
        self.connection, theirs = Pipe()
        python_path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)  # pickles name our modules
        environment = {"PYTHONPATH": python_path, **(options.pop("environment", None) or {})}
        super().__init__(
            [*PYTHON_M, "prep_common.own_packages", module, str(theirs.fileno())],
            environment=environment,
            own_group=False,
            connection=self.connection,
            pass_fds=[theirs.fileno()],
            **options,
        )
        theirs.close()

    def write(self, message: Any) -> None:
        """Write a message. Raises ProcessEnded."""
        try:
            self.connection.send(message)
        except ConnectionError:
            raise self.ended() from None

    def read(self) -> Any:
        """Return the next message. Raises ProcessEnded."""
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            raise self.ended() from None


def _end(
    process: subprocess.Popen[bytes],
    pipe: Connection | IO[bytes] | None,
    stop_signal: signal.Signals | None,
    grace_s: float,
    own_group: bool,
) -> None:
    """Ask a child to end, and kill it if it does not. This must not refer to the ChildProcess."""
    if stop_signal is None:
        _hang_up(pipe)
    elif process.poll() is None:
        _signal(process, stop_signal, own_group)
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also when a second Ctrl-C ends the waiting
        _signal(process, signal.SIGKILL, own_group)
        process.wait()
        _hang_up(pipe)


def _hang_up(pipe: Connection | IO[bytes] | None) -> None:
    with suppress(OSError):  # what was not written yet cannot be any more
        if pipe is not None:
            pipe.close()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals, own_group: bool) -> None:
    with suppress(ProcessLookupError, PermissionError):  # the group is gone; macOS: only zombies are left
        os.killpg(process.pid, number) if own_group else process.send_signal(number)
