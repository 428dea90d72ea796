"""`LoRARequest` and the registry of loaded adapters. No torch: clients and servers use it.

Source: vLLM lora/request.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config.settings import InvalidRequestError


class LoRAError(InvalidRequestError):
    """An adapter that cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter by name, for `generate(..., lora_request=...)`; loaded on first use."""

    lora_name: str
    lora_int_id: int  # Positive number, unique among the engine's adapters
    lora_path: str  # Folder in PEFT's layout, or the name of a shipped adapter
    load_inplace: bool = False  # Read the folder again and replace the adapter loaded under this name

    def __post_init__(self) -> None:
        if not isinstance(self.lora_name, str) or not self.lora_name:
            raise LoRAError(f"lora_name must be text that is not empty, got {self.lora_name!r}")
        if type(self.lora_int_id) is not int or self.lora_int_id < 1:
            raise LoRAError(f"lora_int_id must be a positive integer, got {self.lora_int_id!r}")
        if not _is_path(self.lora_path):
            raise LoRAError(
                f"adapter {self.lora_name!r} has no lora_path, got {self.lora_path!r}; give the folder it lies in"
            )
        if not isinstance(self.load_inplace, bool):
            raise LoRAError(f"load_inplace must be True or False, got {self.load_inplace!r}")


def _is_path(value: object) -> bool:
    """Whether this is text that can be the name of a file."""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    try:
        return bool(value.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


class LoRARegistry:
    """The adapters that requests may name, each with the key that stands for its weights.

        name    path          loaded    key                      what the key separates
        ja      /a/ja         once      ja | /a/ja | 1           slots on the device, cached prefixes
        ja      /a/ja         again     ja | /a/ja | 2           ... from those of the first load

    The counter makes reloading in place safe: KV computed with the old weights belongs to a key that no new request
    has. A LoRARequest from before the reload names the new weights. Reading is safe from any thread.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, tuple[LoRARequest, str]] = {}
        self._replaced: set[LoRARequest] = set()
        self._num_loads = 0

    def __len__(self) -> int:
        return len(self._loaded)

    def __contains__(self, lora_name: object) -> bool:
        return isinstance(lora_name, str) and lora_name in self._loaded

    def requests(self) -> list[LoRARequest]:
        """Return the loaded adapters, oldest first."""
        return [request for request, _ in list(self._loaded.values())]

    def find(self, lora_name: str) -> LoRARequest:
        """Return the adapter of this name, or raise LoRAError."""
        if not isinstance(lora_name, str) or lora_name not in self._loaded:
            known = ", ".join(self._loaded) or "none"
            raise LoRAError(f"there is no adapter {lora_name!r}; loaded are: {known}")
        return self._loaded[lora_name][0]

    def key(self, request: LoRARequest) -> str | None:
        """Return the key of the weights that `request` names; None if they must be loaded first."""
        loaded = self._loaded.get(request.lora_name)
        if loaded is None or request.load_inplace:
            return None
        known, key = loaded
        if request != known and request not in self._replaced:
            raise LoRAError(
                f"adapter {request.lora_name!r} is loaded from {known.lora_path} with the id {known.lora_int_id}, "
                f"not from {request.lora_path} with {request.lora_int_id}; use another name, or load_inplace=True"
            )
        return key

    def new_key(self, request: LoRARequest) -> str:
        """Return a new key for weights that are about to be loaded."""
        for other, _ in self._loaded.values():
            if other.lora_int_id == request.lora_int_id and other.lora_name != request.lora_name:
                raise LoRAError(
                    f"lora_int_id {request.lora_int_id} is that of adapter {other.lora_name!r}; use another"
                )
        self._num_loads += 1
        return f"{request.lora_name}|{request.lora_path}|{self._num_loads}"

    def add(self, request: LoRARequest, key: str) -> str | None:
        """Bind the name to these weights; return its earlier key, if any."""
        before = self._loaded.get(request.lora_name)
        if before is not None:
            self._replaced.add(before[0])
        self._loaded[request.lora_name] = request, key
        return None if before is None else before[1]

    def remove(self, lora_name: str) -> str:
        """Remove the name and return its key, or raise LoRAError."""
        self.find(lora_name)
        self._replaced = {request for request in self._replaced if request.lora_name != lora_name}
        return self._loaded.pop(lora_name)[1]

    def next_int_id(self) -> int:
        """Return an id that no loaded adapter has."""
        return 1 + max((request.lora_int_id for request, _ in self._loaded.values()), default=0)
