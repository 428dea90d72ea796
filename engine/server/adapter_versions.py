"""Serve the promoted versions of a registry of adapters: at the start, and whenever its file changes.

A promotion or a rollback replaces an adapter in place: requests under way finish with the old weights, new ones get the
new weights, and no cached prefix of the old ones (`LoRARegistry` in engine/lora/request.py gives them another key).
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from engine.lora.request import LoRAError
from engine.lora.versions import Version, VersionRegistry
from engine.server.errors import ApiError
from engine.server.models import Models
from engine.server.protocol import LoadLoRARequest

logger = logging.getLogger(__name__)

EVERY_S = 1.0
"""Seconds between two looks at the file."""


class PromotedAdapters:
    """Adapters of a registry file in one server."""

    def __init__(self, models: Models, file: Path) -> None:
        self._models, self._registry = models, VersionRegistry(file)
        self._served: dict[str, tuple[int, Version]] = {}
        self._stamp: tuple[int, int] | None = None

    async def load(self) -> None:
        """Load what changed since the last call. Raises LoRAError at the first one that cannot be served."""
        self._stamp = self._stamp_now()
        promoted = await asyncio.to_thread(self._registry.promoted)
        for name in self._served.keys() - promoted.keys():
            await self._models.unload(name)
            del self._served[name]
            logger.info("adapter %s is no longer promoted: unloaded", name)
        for name, (number, version) in promoted.items():
            if self._served.get(name) == (number, version):
                continue
            folder = await asyncio.to_thread(self._registry.verified, name, version)
            request = LoadLoRARequest(
                lora_name=name, lora_path=str(folder), load_inplace=name in self._served
            )
            try:
                await self._models.load(request)
            except ApiError as error:
                raise LoRAError(f"adapter {name!r}, version {number}: {error}") from None
            before = self._served.get(name)
            self._served[name] = (number, version)
            logger.info(
                "adapter %s: version %d%s", name, number, "" if before is None else f" instead of {before[0]}"
            )

    async def follow(self, every_s: float = EVERY_S) -> None:
        """Load what changes, until cancelled. A version that cannot be served leaves the one before in use."""
        while True:
            await asyncio.sleep(every_s)
            if self._stamp_now() == self._stamp:
                continue
            try:
                await self.load()
            except (LoRAError, ApiError, OSError) as error:
                logger.error("the registry of adapters is not followed until it changes again: %s", error)

    def _stamp_now(self) -> tuple[int, int] | None:
        try:
            stat = self._registry.file.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino
