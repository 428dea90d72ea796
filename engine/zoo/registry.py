"""Names and folders of the shipped models."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).parent / "models"


@dataclass(frozen=True)
class ModelInfo:
    """One folder of the zoo."""

    name: str
    path: Path
    parameters: int
    megabytes: float


def resolve(name: str | Path) -> Path:
    """Return the folder of a shipped model, or any other folder unchanged. Raises FileNotFoundError."""
    path = Path(name)
    if (MODELS / path).is_dir() and path.name == str(name):
        return MODELS / path
    if path.is_dir():
        return path
    known = ", ".join(info.name for info in list_models()) or "none yet"
    what = f"neither a folder nor one of the shipped models ({known})"
    raise FileNotFoundError(f"no model {str(name)!r}: {what}")


def list_models() -> list[ModelInfo]:
    """Return every model and adapter in the zoo, with its size."""
    folders = sorted({file.parent for file in MODELS.glob("[!.]*/*.safetensors")})
    files = {folder: [file for file in folder.rglob("*") if file.is_file()] for folder in folders}
    sizes = {folder: sum(file.stat().st_size for file in inside) / 1e6 for folder, inside in files.items()}
    return [ModelInfo(folder.name, folder, count_parameters(folder), sizes[folder]) for folder in folders]


def count_parameters(folder: Path) -> int:
    """Return the count of numbers in the weight files, from their headers."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        header.pop("__metadata__", None)
        total += sum(math.prod(tensor["shape"]) for tensor in header.values())
    return total
