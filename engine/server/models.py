"""Names that requests may give as `model`: the base model's, and those of loaded adapters."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from engine.async_llm import AsyncLLM
from engine.lora.request import LoRAError, LoRARequest
from engine.server.errors import ApiError
from engine.server.fields import refuse
from engine.server.protocol import LoadLoRARequest


class Models:
    """The base model under its names, and its adapters."""

    def __init__(self, llm: AsyncLLM, names: list[str], root: str) -> None:
        """names: of the base model; the first one is in answers. root: its folder or hub id."""
        self._llm, self.names, self._root = llm, names, root
        self._adapters: dict[str, LoRARequest] = {}
        self._created = int(time.time())
        self.submitting = asyncio.Lock()
        """Held while a request submits its prompts in several turns, and while adapters change."""

    def find(self, name: str | None) -> tuple[str, LoRARequest | None]:
        """Return the name for the answer, and the adapter if the name is one. Raises ApiError 404."""
        if not name or name in self.names:
            return self.names[0], None
        if name in self._adapters:
            return name, self._adapters[name]
        known = ", ".join([*self.names, *self._adapters])
        raise ApiError(404, f"The model `{name}` does not exist. Valid names: {known}.", param="model")

    def cards(self, max_model_len: int) -> dict[str, Any]:
        """Return the answer of GET /v1/models."""
        base = [self._card(name, self._root, None, max_model_len) for name in self.names]
        adapters = [
            self._card(name, adapter.lora_path, self.names[0], None)
            for name, adapter in self._adapters.items()
        ]
        return {"object": "list", "data": base + adapters}

    async def load(self, request: LoadLoRARequest) -> str:
        """Load an adapter. Raises ApiError 400 for a name that is taken or an adapter that cannot be served."""
        refuse(request)
        name, path = request.lora_name, request.lora_path
        if not name or not path:
            raise ApiError(400, "lora_name and lora_path must not be empty")
        if name in self.names:
            raise ApiError(400, f"{name!r} is the name of the base model; choose another", param="lora_name")
        try:
            async with self.submitting:
                loaded = await self._llm.load_lora_adapter(name, path, load_inplace=request.load_inplace)
        except (LoRAError, OSError, ValueError) as error:
            raise ApiError(400, str(error), param="lora_path") from None
        self._adapters[name] = loaded
        return f"Success: LoRA adapter '{name}' added successfully."

    async def unload(self, name: str) -> str:
        """Unload an adapter; unfinished requests still finish with it. Raises ApiError 404 if it is unknown."""
        async with self.submitting:
            # Before the engine does: a request that finds it would load it again.
            if self._adapters.pop(name, None) is None:
                raise ApiError(404, f"The lora adapter `{name}` cannot be found.", param="lora_name")
            await self._llm.unload_lora_adapter(name)
        return f"Success: LoRA adapter '{name}' removed successfully."

    def _card(self, name: str, root: str, parent: str | None, max_model_len: int | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "prep",
            "root": root,
            "parent": parent,
            "max_model_len": max_model_len,
        }
