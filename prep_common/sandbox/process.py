"""A guest's process: its pipes, its output, and the watch over its limits."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from prep_common.child_process import ROOT, ChildProcess
from prep_common.guest import codec
from prep_common.process_family import family
from prep_common.sandbox.errors import GuestStopped
from prep_common.sandbox.limits import Limits
from prep_common.sandbox.nursery import MAIN, START_SECONDS, NurseryGuest, is_useful, nursery

OUTPUT_BYTES = 64 << 10
_LOOK_EVERY = 0.05
_DISK_EVERY = 0.5
MOST_CREDIT = 4.0
"""Credit for waiting for a processor: at most so many times the limit of the guest, of one call or of loading."""
_MIB = 1 << 20


class GuestProcess:
    """A process that is stopped at its limits while the checker reads from it or writes to it."""

    def __init__(self, scratch: Path, limits: Limits, imports: Sequence[str]) -> None:
        self._scratch, self._limits = scratch, limits
        self.seconds_left = START_SECONDS
        self._lent_left = limits.lent_seconds
        self._operation, self._least_left, self._most_credit = "", 0.0, float("inf")
        self._looked = self._looked_at_disk = 0.0
        self._why: str | None = None
        self._since: float | None = None
        self._credit = self._queued_at_start = 0.0
        self._kept, self._dropped = bytearray(), 0
        their_read, self._write = os.pipe()
        self._read, their_write = os.pipe()
        self._printed, their_output = os.pipe()
        for end in (self._write, self._read, self._printed):
            os.set_blocking(end, False)
        theirs = (their_read, their_write, their_output)
        try:
            self._child: ChildProcess | NurseryGuest | None = _start(scratch, imports, theirs)
        finally:
            for end in theirs:
                os.close(end)
        self._watched = psutil.Process(self._child.pid)

    def start_clock(self) -> None:
        """Begin to count the guest's own time."""
        self.seconds_left = self._limits.seconds
        self._queued_at_start = self._queued()

    @contextmanager
    def guest_time(self, operation: str) -> Iterator[None]:
        """Count the time of the block, one request, as the guest's."""
        outer = (self._operation, self._least_left, self._most_credit)
        own = {"setup": float("inf"), "load": self._limits.load_seconds}
        most = own.get(operation, self._limits.call_seconds)
        self._operation, self._since = operation, time.monotonic()
        self._least_left = max(self._least_left, self.seconds_left - most)
        self._most_credit = min(self._most_credit, self._credit + MOST_CREDIT * most)
        try:
            yield
        finally:
            self._count()
            self._since = None
            self._operation, self._least_left, self._most_credit = outer

    @contextmanager
    def lent_time(self) -> Iterator[None]:
        """Count the time of the block as that of a lent object."""
        self._count()
        self._since = None
        began = time.monotonic()
        try:
            yield
        finally:
            self._since = time.monotonic()
            self._lent_left -= self._since - began
        if self._lent_left < 0:
            raise self.stop(f"kept the checker busy for more than {self._limits.lent_seconds:g} s")

    def _count(self) -> None:
        now = time.monotonic()
        if self._since is not None:
            self.seconds_left -= now - self._since
            self._since = now

    def _take_credit(self) -> None:
        """Add the time in which guest and checker were ready to run and a busy machine gave them no processor."""
        waited = self._queued() - self._queued_at_start
        most = min(waited, MOST_CREDIT * self._limits.seconds, self._most_credit)
        self.seconds_left += max(0.0, most - self._credit)
        self._credit = max(self._credit, most)

    def _queued(self) -> float:
        """Return the seconds that guest and checker have waited for a processor so far; 0 where Linux does not say."""
        return _seconds_queued(f"/proc/{self._watched.pid}") + _seconds_queued("/proc/thread-self")

    def write(self, data: bytes) -> None:
        """Write bytes. Raises GuestStopped."""
        view = memoryview(data)
        while view:
            self._wait(self._write, writing=True)
            try:
                view = view[os.write(self._write, view[: 1 << 20]) :]
            except BlockingIOError:
                continue
            except OSError:
                raise self._ended() from None

    def read(self) -> tuple[bytes, bytes]:
        """Return the two parts of the next frame. Raises GuestStopped."""
        size, num_blobs = codec.HEADER.unpack(self._exactly(codec.HEADER.size))
        if size > 2 * codec.MAX_JSON_BYTES or num_blobs > self._limits.value_megabytes * _MIB:
            raise self.stop(f"returned more than {self._limits.value_megabytes} MiB")
        return self._exactly(size), self._exactly(num_blobs)

    def stop(self, why: str) -> GuestStopped:
        """Kill the guest; return the exception that says why."""
        self._why = self._why or why
        if self._child is not None:
            self._child.kill()
        return GuestStopped(self._why)

    def output(self) -> str:
        """Return what was printed so far."""
        if self._child is not None:
            self._drain()
        text = self._kept.decode(errors="replace")
        return text + (f"\n... and {self._dropped:,} more bytes" if self._dropped else "")

    def close(self) -> None:
        """End the process and everything it started."""
        if self._child is None:
            return
        self._child.kill()
        self._drain()
        self._child = None
        for end in (self._write, self._read, self._printed):
            os.close(end)
        self._why = self._why or "has been closed"

    def _exactly(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            self._wait(self._read)
            try:
                data = os.read(self._read, min(size - len(parts), 1 << 20))
            except BlockingIOError:
                continue
            if not data:
                raise self._ended()
            parts += data
        return bytes(parts)

    def _wait(self, end: int, *, writing: bool = False) -> None:
        """Wait until the pipe is ready, and count the time."""
        if self._why is not None or self._child is None:
            raise GuestStopped(self._why or "has been closed")
        reads, writes = ([self._printed], [end]) if writing else ([self._printed, end], [])
        while True:
            self._count()
            if self.seconds_left <= self._least_left:
                self._take_credit()
            if (left := self.seconds_left - self._least_left) <= 0:
                raise self.stop(self._too_long())
            ready, writable, _ = select.select(reads, writes, [], min(_LOOK_EVERY, left))
            if self._printed in ready and not self._drain():
                reads.remove(self._printed)  # it closed its output
            now = time.monotonic()
            if now - self._looked > _LOOK_EVERY:
                self._looked = now
                self._look(now)
            if end in ready or end in writable:
                return

    def _too_long(self) -> str:
        if self._operation == "setup":
            return f"did not start within {START_SECONDS:g} s"
        is_load = self._operation == "load"
        own = self._limits.load_seconds if is_load else self._limits.call_seconds
        place = " while loading the file" if is_load else " in one call" if self.seconds_left > 0 else ""
        return f"stopped after {own if self.seconds_left > 0 else self._limits.seconds:g} s{place}"

    def _look(self, now: float) -> None:
        """Compare what the guest uses with its limits."""
        limits = self._limits
        try:
            members = family(self._watched)
            used = sum(int(member.memory_info().rss) for member in members) // _MIB
            threads = sum(int(member.num_threads()) for member in members)
        except psutil.Error:
            return
        if used > limits.megabytes:
            raise self.stop(f"took more than {limits.megabytes:,} MiB")
        if threads > limits.threads:
            raise self.stop(f"started more than {limits.threads} threads")
        if now - self._looked_at_disk > _DISK_EVERY:
            self._looked_at_disk = now
            if _megabytes_of(self._scratch, members) > limits.disk_megabytes:
                raise self.stop(f"wrote more than {limits.disk_megabytes} MiB of files")

    def _ended(self) -> GuestStopped:
        """Return the exception for a process that closed its pipe."""
        assert self._child is not None
        code = self._child.exit_code(1.0)
        if code is None:
            return self.stop("closed the checker's pipe")
        if code < 0:
            return self.stop(f"was killed by {signal.Signals(-code).name}")
        return self.stop(f"ended itself with exit code {code}")

    def _drain(self) -> bool:
        """Take what was printed. Return False at the end."""
        for _ in range(16):
            try:
                data = os.read(self._printed, 1 << 16)
            except OSError:
                return True
            if not data:
                return False
            room = OUTPUT_BYTES - len(self._kept)
            self._kept += data[:room]
            self._dropped += max(0, len(data) - room)
        return True


def _start(scratch: Path, imports: Sequence[str], ends: tuple[int, int, int]) -> ChildProcess | NurseryGuest:
    """Start a guest process with these ends of the pipes: to read, to write, to print."""
    home = dict.fromkeys(("HOME", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR"), str(scratch))
    if is_useful(imports):
        return NurseryGuest(nursery(imports, _environment()), scratch, home, ends)
    read, write, output = ends
    command = [sys.executable, "-I", "-S", "-u", MAIN, str(ROOT), str(os.getpid()), str(read), str(write)]
    return ChildProcess(
        command,
        name="the program",
        environment=_environment() | home,
        inherit_environment=False,
        pass_fds=(read, write),
        stdin=-3,  # subprocess.DEVNULL
        stdout=output,
        stderr=output,
        cwd=scratch,
        grace_s=0.0,
    )


def _environment() -> dict[str, str]:
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, **single, "PATH": os.defpath, "TRITON_INTERPRET": "1"}


def _seconds_queued(process: str) -> float:
    """Return the second field of a thread's schedstat, its time in the run queue."""
    try:
        return int(Path(process, "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _megabytes_of(folder: Path, members: Sequence[psutil.Process]) -> int:
    """Return the disk space of the files in a folder, and on Linux of deleted files that these processes have open."""
    places = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    for process in members:
        with suppress(OSError):
            places += [entry.path for entry in os.scandir(f"/proc/{process.pid}/fd")]
    sizes: dict[tuple[int, int], int] = {}
    for place in places:
        with suppress(OSError):
            is_open = place.startswith("/proc/")
            file = os.stat(place, follow_symlinks=is_open)
            if not is_open or (stat.S_ISREG(file.st_mode) and not file.st_nlink):
                sizes[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(sizes.values()) // _MIB
