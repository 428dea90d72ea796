"""The process in which experiments run: it stays warm between questions, and can be killed without harm.

Reads one JSON command a line from stdin and answers each with one line:

    {"do": "warm", "name": "roofline.decode"}                  -> {"ok": true}
    {"do": "run", "name": ..., "args": ..., "seed": 0}         -> {"started": true} when all is imported, then
                                                                  {"ok": true, "result": {...}} or {"ok": false, ...}

What an experiment prints goes to stderr: stdout belongs to the answers.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from quizzes.experiments.registry import (
    BadArguments,
    Inconclusive,
    NeedsHardware,
    UnknownExperiment,
    get,
    source_file,
)

_KINDS: dict[type[BaseException], str] = {
    UnknownExperiment: "unknown",
    BadArguments: "arguments",
    Inconclusive: "inconclusive",
    NeedsHardware: "hardware",
    MemoryError: "memory",
}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = _obey(json.loads(line), answers)
        except KeyboardInterrupt:
            return
        except BaseException as error:  # whatever an experiment does, the worker lives on
            answer = _tell(error)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _obey(command: dict[str, Any], answers: IO[str]) -> dict[str, Any]:
    _warm(command["name"])
    if command["do"] == "warm":
        return {"ok": True}
    answers.write('{"started": true}\n')
    from quizzes.experiments.running import run_here

    trace = command.get("trace")
    result = run_here(
        command["name"], command["args"], seed=command["seed"], trace=Path(trace) if trace else None
    )
    return {"ok": True, "result": result}


def _warm(name: str) -> None:
    """Import what this experiment will need, while the learner still thinks."""
    get(name)
    text = source_file(name).read_text(encoding="utf-8")
    if "ctx.llm(" in text:
        import_module("engine.llm")
    elif "torch" in text:
        import_module("torch")


def _tell(error: BaseException) -> dict[str, Any]:
    kind = next((kind for family, kind in _KINDS.items() if isinstance(error, family)), "failed")
    return {
        "ok": False,
        "error": kind,
        "message": str(error) or type(error).__name__,
        "traceback": traceback.format_exc(),
    }


if __name__ == "__main__":
    main()
