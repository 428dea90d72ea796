"""A network between two engines that can be told to misbehave: a proxy that cuts, damages or stalls."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self


@dataclass
class Fault:
    """Fault in the answer of the prefill engine."""

    cut_after: int | None = None
    """Bytes that pass before the connection dies."""
    damage_at: int | None = None
    """Index of a byte that is changed."""
    stall_after: int | None = None
    """Bytes that pass before nothing comes any more, with the connection open."""


class BadNetwork:
    """Listens in a prefill engine's place: `redirect` its params here."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._target: tuple[str, int] = ("", 0)
        self._over = threading.Event()
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def redirect(self, params: dict[str, Any]) -> dict[str, Any]:
        self._target = (params["remote_host"], params["remote_port"])
        self._thread.start()
        return {**params, "remote_port": self._server.getsockname()[1]}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        self._server.close()
        for connection in self._sockets:
            connection.close()

    def _run(self) -> None:
        reader, _ = self._server.accept()
        writer = socket.create_connection(self._target)
        self._sockets += [reader, writer]
        threading.Thread(target=self._pass_questions, args=[reader, writer], daemon=True).start()
        fault, num_passed = self.fault, 0
        try:
            while data := bytearray(writer.recv(1000)):
                end = num_passed + len(data)
                if fault.damage_at is not None and num_passed <= fault.damage_at < end:
                    data[fault.damage_at - num_passed] ^= 0x10
                for limit in (fault.cut_after, fault.stall_after):
                    if limit is not None and end > limit:
                        reader.sendall(data[: limit - num_passed])
                        if fault.stall_after is not None:
                            self._over.wait()
                        reader.shutdown(socket.SHUT_RDWR)
                        writer.shutdown(socket.SHUT_RDWR)
                        return
                reader.sendall(data)
                num_passed = end
        except OSError:
            pass

    def _pass_questions(self, reader: socket.socket, writer: socket.socket) -> None:
        try:
            while data := reader.recv(1000):
                writer.sendall(data)
        except OSError:  # the reader hung up with data unread
            pass
        finally:
            with suppress(OSError):
                writer.shutdown(socket.SHUT_RDWR)
