"""Worker process of experiments: warm between questions, safe to kill.

Reads one JSON command a line from stdin and answers each with one line:

    {"do": "warm", "name": "roofline.decode"}                  -> {"ok": true}
    {"do": "run", "name": ..., "args": ..., "seed": 0}         -> {"started": true} when all is imported, then
                                                                  {"ok": true, "result": {...}} or {"ok": false, ...}

What an experiment prints goes to stderr: stdout belongs to the answers.
"""

from __future__ import annotations

import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from common.parent_link import JsonLink
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
    link = JsonLink()
    while True:
        try:
            answer = _obey(link.read(), link)
        except KeyboardInterrupt:
            return
        except BaseException as error:  # no failure of an experiment ends the worker
            answer = _tell(error)
        link.write(answer)


def _obey(command: dict[str, Any], link: JsonLink) -> dict[str, Any]:
    _warm(command["name"])
    if command["do"] == "warm":
        return {"ok": True}
    link.write({"started": True})
    from quizzes.experiments.running import run_here

    trace = command.get("trace")
    result = run_here(
        command["name"], command["args"], seed=command["seed"], trace=Path(trace) if trace else None
    )
    return {"ok": True, "result": result}


def _warm(name: str) -> None:
    """Import what this experiment needs while the learner reads the question."""
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
