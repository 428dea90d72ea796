"""Compile learner code: the compiler runs confined, the library that it makes is for a guest."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from prep_common.child_process import ROOT, ChildProcess
from prep_common.sandbox.places import SYSTEM

TIMEOUT_S = 60.0


class CompilerRefused(ValueError):
    """The compiler ended with an error, or not in time; the message holds its first error."""


def compiled(
    command: Sequence[str],
    files: Mapping[str, str],
    result: str,
    readable: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> bytes:
    """Run a compiler in a folder that holds the files; return the file `result` that it makes.

    command: absolute path of the program, and its arguments. readable: folders beside the system's; programs in them
    may run. environment: variables to set; it has no others. Raises CompilerRefused.
    """
    with TemporaryDirectory(prefix="prep-compile-") as folder:
        scratch = Path(folder).resolve()
        for name, text in files.items():
            (scratch / name).write_text(text, encoding="utf-8")
        places = [*SYSTEM, str(Path(command[0]).resolve().parents[1]), *readable]
        start = [sys.executable, "-I", "-S", str(ROOT / "prep_common/guest/confined.py")]
        variables = {
            **(environment or {}),
            "TMPDIR": folder,
            "PATH": os.environ.get("PATH", ""),
            "LC_ALL": "C.UTF-8",
        }
        with ChildProcess(
            [*start, str(ROOT), str(os.getpid()), str(scratch), *places, "--", *command],
            name="the compiler",
            environment=variables,
            inherit_environment=False,
            keep_stderr=True,
        ) as child:
            code = child.exit_code(TIMEOUT_S)
            if code is None:
                child.kill()
                raise CompilerRefused(f"the compiler did not end within {TIMEOUT_S:.0f} s")
            if code:
                raise CompilerRefused(_first_error(child.last_words(200), scratch))
        try:
            return (scratch / result).read_bytes()
        except OSError:
            raise CompilerRefused("the compiler made no library") from None


def _first_error(said: str, scratch: Path) -> str:
    lines = [line.replace(f"{scratch}/", "") for line in said.splitlines()]
    signs = ("error:", "undefined", "not defined")
    errors = [
        line for line in lines if any(sign in line for sign in signs) and not line.startswith("collect2")
    ]
    last = [line for line in lines if line.strip()][-1:]  # of a Python traceback
    return (errors or last or ["the compiler failed without a message"])[0]
