"""CUDA C++ -> cubin, with NVRTC through cuda.core: no nvcc, no CUDA toolkit, no GPU and no driver needed.

    norm.cu --NVRTC, -D ..., sm_90--> PTX --ptxas inside NVRTC--> cubin          one for each architecture
                                                         \\--> log: registers, shared memory, spills

A cubin is kept in the user's cache with its log and its PTX, under a key that covers the source, everything it could
include, the defines, the architecture and NVRTC's version. Types and sizes that a kernel is compiled for are given as
defines, so the `.cu` files hold plain `extern "C"` functions that a reader finds again by name in the PTX.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernels import INSTALL_COMPILERS
from kernels.cpu.build import cache_folder

Defines = tuple[tuple[str, str], ...]
OPTIONS = {"std": "c++17", "ptxas_options": ["-v"]}


class CompileError(RuntimeError):
    """NVRTC refused a kernel; the message is its first error."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """One `.cu` file for one architecture and one set of defines."""

    cubin: bytes
    ptx: str
    log: str
    """Log of ptxas -v for every kernel in the file."""


def source_folder() -> Path:
    """Return the folder of the `.cu` files."""
    return Path(__file__).parent


def problem() -> str | None:
    """Return why kernels cannot be compiled here; None if they can."""
    try:
        _nvrtc_version()
    except ImportError as error:
        return f"cuda-core is not installed ({error}); {INSTALL_COMPILERS}"
    except Exception as error:  # cuda.bindings raises its own kinds when the library is missing
        return f"NVRTC does not load ({str(error).splitlines()[0]}); {INSTALL_COMPILERS}"
    return None


@cache
def compiled(source: str, defines: Defines, arch: int, folder: Path) -> Compiled:
    """The file `source` of `folder` for sm_<arch>: from the cache, or from NVRTC. Raises CompileError."""
    path = cache_folder() / "cuda" / f"{Path(source).stem}-sm_{arch}-{_key(source, defines, arch, folder)}"
    try:
        record = json.loads(path.with_suffix(".json").read_text())
        return Compiled(path.with_suffix(".cubin").read_bytes(), record["ptx"], record["log"])
    except (OSError, ValueError):
        pass  # not there yet, or not readable
    result = _compile(source, defines, arch, folder)
    _keep(path.with_suffix(".cubin"), result.cubin)
    _keep(path.with_suffix(".json"), json.dumps({"ptx": result.ptx, "log": result.log}).encode())
    return result


def _key(source: str, defines: Defines, arch: int, folder: Path) -> str:
    digest = hashlib.sha256(repr((source, defines, arch, OPTIONS, _nvrtc_version())).encode())
    for path in sorted(folder.glob("*.cu*")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def _nvrtc_version() -> tuple[int, int]:
    from cuda.bindings import nvrtc

    error, major, minor = nvrtc.nvrtcVersion()
    assert not int(error)
    return major, minor


def _compile(source: str, defines: Defines, arch: int, folder: Path) -> Compiled:
    from cuda.core import Program, ProgramOptions

    where = {"name": source, "arch": f"sm_{arch}", "include_path": str(folder)}
    options = ProgramOptions(define_macro=list(defines) or None, **where, **OPTIONS)
    log = _Log()
    program = Program((folder / source).read_text(), "c++", options)
    try:
        code = program.compile("cubin", logs=log)
        return Compiled(bytes(code.code), _ptx(program.handle), log.text)
    except Exception as error:  # NVRTCError, with the whole log in its text
        lines = [line for line in str(error).splitlines() if "error:" in line]
        raise CompileError(f"sm_{arch}: {(lines or str(error).splitlines())[0]}") from error
    finally:
        program.close()


def _ptx(program: object) -> str:
    """The step before the cubin. `Program.compile("ptx")` would ask the driver whether it could load it."""
    from cuda.bindings import nvrtc

    error, size = nvrtc.nvrtcGetPTXSize(program)
    buffer = b" " * size
    (error,) = nvrtc.nvrtcGetPTX(program, buffer)
    assert not int(error)
    return buffer.rstrip(b"\0").decode()


class _Log:
    """Something to write to, as Program.compile wants it."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str | bytes) -> None:
        self.text += text if isinstance(text, str) else text.decode()


def _keep(path: Path, content: bytes) -> None:
    """Whole or not at all. Where the cache cannot be written, every process compiles for itself."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        os.replace(file.name, path)
    except OSError:
        return
