"""Download a checkpoint; the tensors of each file of its folder, and whether the files are whole.

Only headers are read here, so a damaged or foreign checkpoint is refused before the model is built. A
safetensors file is 8 bytes of header length, a JSON header with every tensor's type, shape and byte range, then
the bytes. Source: the format description of huggingface/safetensors.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import ConfigError
from prep_common.text import counted

INDEX_FILE = "model.safetensors.index.json"
PICKLE_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
_HUB_TIMEOUT_S = 5.0
_HASHED_WHOLE = 64 << 20
_SAMPLE_SIZE = 64 << 10
_NUM_SAMPLES = 256
_CHUNK = 1 << 20
BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32,
    "U16": 16, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8,
}  # fmt: skip
"""Bits of a number of each type in safetensors; a type that is not here is refused where a tensor of it is used."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a weight file, not yet read."""

    file: Path
    dtype: str  # safetensors' name: F32, BF16, F16, I32 …
    shape: tuple[int, ...]
    start: int = 0  # Of its bytes in the file
    end: int = 0


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or a ConfigError that names the file and the fault."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path.parent} has no {path.name}; expected a folder in Hugging Face layout"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, or brackets without end
        raise ConfigError(
            f"{path} is not valid JSON ({error}); the file is damaged, fetch it again"
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds a {type(content).__name__}, expected a JSON object; fetch it again")
    return content


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the checkpoint, in name order, all of them present."""
    index = folder / INDEX_FILE
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ConfigError(f"{index} has no weight_map; the file is damaged, fetch it again")
        for name, file in weight_map.items():
            if not isinstance(file, str) or Path(file).name != file:
                raise ConfigError(
                    f"{index}: weight_map gives {name} the file {file!r}, expected the name of a file in this folder; "
                    "fetch it again"
                )
        files = [folder / name for name in sorted(set(weight_map.values()))]
    elif (folder / "model.safetensors").exists():
        files = [folder / "model.safetensors"]
    else:
        files = sorted(folder.glob("*.safetensors"))
    pickles = sorted(file.name for pattern in PICKLE_PATTERNS for file in folder.glob(pattern))
    if not files and pickles:
        raise ConfigError(
            f"{folder} holds weights only as Python pickles ({pickles[0]}), which can run code when they are read; "
            "convert them once, where you trust them: AutoModelForCausalLM.from_pretrained(folder)"
            ".save_pretrained(new_folder) writes safetensors"
        )
    if not files:
        raise ConfigError(
            f"{folder} holds no weights (*.safetensors); use load_format='dummy' to run the architecture "
            "with random ones"
        )
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ConfigError(
            f"{folder} misses {len(missing)} of {len(files)} weight files named in {INDEX_FILE}: "
            f"{', '.join(missing[:4])}; complete the download"
        )
    return files


def read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file; refuses a file that is cut short or not safetensors at all."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            header_size = int.from_bytes(stream.read(8), "little")
            if size < 8 or header_size > size - 8:
                raise ConfigError(
                    f"{file} is cut short or not a safetensors file ({size:,} bytes); fetch it again"
                )
            content = stream.read(header_size)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror or error}") from error
    try:
        header = json.loads(content)
        header.pop("__metadata__", None)
        tensors = {name: _stored(file, 8 + header_size, entry) for name, entry in header.items()}
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{file} has a damaged safetensors header ({error}); fetch it again") from error
    expected = max((tensor.end for tensor in tensors.values()), default=8 + header_size)
    if size != expected:
        raise ConfigError(
            f"{file} has {counted(size, 'byte')} where its header announces {expected:,}: the file is cut short or "
            "damaged, fetch it again"
        )
    return tensors


def _stored(file: Path, offset: int, entry: Any) -> StoredTensor:
    """Return a tensor of a header whose data begin at `offset`. Raises ValueError and the like if it is damaged."""
    dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    numbers = (*shape, start, end)
    if not isinstance(dtype, str) or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"dtype {dtype!r}, shape {shape!r}")
    bits = BITS.get(dtype)
    if start > end or (bits is not None and 8 * (end - start) != bits * math.prod(shape)):
        raise ValueError(f"{end - start} bytes for {dtype} {shape}")
    return StoredTensor(file, dtype, tuple(shape), offset + start, offset + end)


def same_bytes(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether two tensors have the same type, shape and bytes."""
    size = one.end - one.start
    if (one.dtype, one.shape, size) != (other.dtype, other.shape, other.end - other.start):
        return False
    with one.file.open("rb") as first, other.file.open("rb") as second:
        first.seek(one.start)
        second.seek(other.start)
        for start in range(0, size, _CHUNK):
            count = min(_CHUNK, size - start)
            if first.read(count) != second.read(count):
                return False
    return True


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a checkpoint by name."""
    tensors: dict[str, StoredTensor] = {}
    for file in weight_files(folder):
        for name, tensor in read_header(file).items():
            if name in tensors:
                raise ConfigError(
                    f"{name} is in {tensors[name].file.name} and in {file.name}; remove the files that do not "
                    f"belong to this checkpoint, or add {INDEX_FILE}"
                )
            tensors[name] = tensor
    return tensors


def content_hash(file: Path) -> str:
    """Digest of a weight file: of everything up to 64 MiB, of 256 samples of 64 KiB spread over more."""
    size = file.stat().st_size
    digest = hashlib.sha256(f"{file.name}:{size}:".encode())
    with file.open("rb") as stream:
        if size <= _HASHED_WHOLE:
            digest.update(stream.read())
            return digest.hexdigest()
        for index in range(_NUM_SAMPLES):
            stream.seek((size - _SAMPLE_SIZE) * index // (_NUM_SAMPLES - 1))
            digest.update(stream.read(_SAMPLE_SIZE))
    return digest.hexdigest()


def download(repo: str, *, revision: str | None, cache_dir: str | None, shipped: list[str]) -> Path:
    """The folder of a Hub repository: from the local cache if it is complete there, else downloaded.

    Only configuration, tokenizer and safetensors files are taken, never pickles. Whether the Hub can be
    reached is asked once with a short timeout, so a machine without network fails in seconds.
    """
    from huggingface_hub import HfApi, errors, snapshot_download

    where: dict[str, Any] = {"revision": revision, "cache_dir": cache_dir, "allow_patterns": _HUB_FILES}
    try:
        cached = Path(snapshot_download(repo, local_files_only=True, **where))
        if (cached / "config.json").exists() and any(cached.glob("*.safetensors")):
            return cached
    except (errors.LocalEntryNotFoundError, errors.HFValidationError):
        pass

    try:
        files = HfApi().model_info(repo, revision=revision, timeout=_HUB_TIMEOUT_S).siblings or []
        if not any(file.rfilename.endswith(".safetensors") for file in files):
            raise ConfigError(f"{repo} has no safetensors weights on the Hub; pickled weights are not read")
        return Path(snapshot_download(repo, local_files_only=False, **where))
    except ConfigError:
        raise
    except errors.GatedRepoError as error:
        raise ConfigError(
            f"{repo} is gated: accept its licence on the Hub and log in (`hf auth login`)"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ConfigError(f"{repo} has no revision {revision!r} on the Hub") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ConfigError(
            f"no model {repo!r} on the Hub, or it is private; check the spelling or log in (`hf auth login`)"
        ) from error
    except Exception as error:  # the HTTP client's errors differ from version to version
        raise ConfigError(
            f"cannot reach the Hugging Face Hub for {repo!r} ({type(error).__name__}). Without a network use a "
            f"shipped model ({', '.join(shipped) or 'none'}) or a local folder; where there is one, "
            f"`hf download {repo} --local-dir FOLDER` fetches it"
        ) from error
