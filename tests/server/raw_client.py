"""A client for thousands of streams: plain sockets, one connection per client, as little Python as possible."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any


class RawClient:
    """One keep-alive connection, reopened after a hang-up."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._address, self._key = (host, port), key
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(
        self, path: str, body: dict[str, Any], hang_up_after: int | None = None
    ) -> tuple[int, bytes | None]:
        """Return status and body, None after hanging up: when so many events have come."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(*self._address)
        reader, writer = self._streams
        content = json.dumps(body).encode()
        lines = (
            f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {self._key}",
            "Content-Type: application/json", f"Content-Length: {len(content)}", "", "",
        )  # fmt: skip
        writer.write("\r\n".join(lines).encode() + content)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        if b"content-length:" in head:
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            return status, await reader.readexactly(length)
        found = b""
        while size := int(await reader.readline(), 16):
            found += (await reader.readexactly(size + 2))[:-2]
            if hang_up_after is not None and found.count(b"data: ") > hang_up_after:
                await self.close()
                return status, None
        await reader.readexactly(2)
        return status, found

    async def close(self) -> None:
        if self._streams is not None:
            _, writer = self._streams
            self._streams = None
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
