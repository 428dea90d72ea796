"""Names and folders of the shipped models."""

from __future__ import annotations

import json
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
    raise FileNotFoundError(
        f"no model {str(name)!r}: neither a folder nor one of the shipped models ({known})"
    )


def list_models() -> list[ModelInfo]:
    """Return every model and adapter in the zoo, with its size."""
    folders = sorted(
        folder for folder in MODELS.glob("*") if folder.is_dir() and not folder.name.startswith(".")
    )
    return [
        ModelInfo(folder.name, folder, count_parameters(folder), sum(_sizes(folder)) / 1e6)
        for folder in folders
        if any(folder.glob("*.safetensors"))
    ]


def _sizes(folder: Path) -> list[int]:
    return [file.stat().st_size for file in folder.rglob("*") if file.is_file()]


def count_parameters(folder: Path) -> int:
    """Return the count of numbers in the weight files, from their headers."""
    total = 0
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        for name, tensor in header.items():
            if name != "__metadata__":
                count = 1
                for size in tensor["shape"]:
                    count *= size
                total += count
    return total
