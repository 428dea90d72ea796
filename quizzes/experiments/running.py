"""One run of an experiment in this process, and the worker process: warm between questions, safe to kill.

The worker reads one JSON command a line from stdin and answers each with one line:

    {"do": "warm", "name": "roofline.decode"}                  -> {"ok": true}
    {"do": "run", "name": ..., "args": ..., "seed": 0}         -> {"started": true} when all is imported, then
                                                                  {"ok": true, "result": {...}} or {"ok": false, ...}

What an experiment prints goes to stderr: stdout belongs to the answers.
"""

from __future__ import annotations

import json
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from engine.config import ConfigError
from prep_common.memory import collect_rarely
from prep_common.parent_link import JsonLink
from quizzes.experiments import registry
from quizzes.experiments.context import Context
from quizzes.experiments.registry import BadArguments, Result

_KINDS: dict[type[BaseException], str] = {
    registry.UnknownExperiment: "unknown",
    BadArguments: "arguments",
    registry.Inconclusive: "inconclusive",
    registry.NeedsHardware: "hardware",
    MemoryError: "memory",
}


class BadResult(TypeError):
    """An experiment returned something other than a Result of plain values with the fields it declares."""


def run_here(
    name: str, args: dict[str, Any] | None = None, *, seed: int = 0, trace: Path | None = None
) -> dict[str, Any]:
    """Return the result's fields by name.

    Raises:
        UnknownExperiment, BadArguments: nothing was run.
        Inconclusive, NeedsHardware: it cannot decide here.
        BadResult: the experiment is at fault, see above.
    """
    experiment = registry.get(name)
    values = experiment.check(args or {})
    try:
        result = experiment.run(Context(seed=seed, trace=trace), **values)
    except ConfigError as error:  # each value is valid, but the engine rejects the combination
        raise BadArguments(f"{name}: {error}") from error
    if not isinstance(result, Result):
        raise BadResult(f"{name} returned {type(result).__name__}; an experiment returns a Result")
    plain, declared = vars(result), experiment.result_units
    if set(plain) != set(declared):
        raise BadResult(f"{name} returned {', '.join(plain)}; its docstring declares {', '.join(declared)}")
    try:
        return dict(json.loads(json.dumps({field: plain[field] for field in declared}, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise BadResult(f"{name}: a field of the result is not a plain value: {error}") from error


def main() -> None:
    link = JsonLink()
    while True:
        try:
            answer = _obey(link.read(), link)
        except KeyboardInterrupt:
            return
        except BaseException as error:  # no failure of an experiment ends the worker
            answer = {
                "ok": False,
                "error": next(
                    (kind for family, kind in _KINDS.items() if isinstance(error, family)), "failed"
                ),
                "message": str(error) or type(error).__name__,
                "traceback": traceback.format_exc(),
            }
        link.write(answer)


def _obey(command: dict[str, Any], link: JsonLink) -> dict[str, Any]:
    _warm(command["name"])
    if command["do"] == "warm":
        return {"ok": True}
    collect_rarely()
    link.write({"started": True})
    trace = Path(command["trace"]) if command.get("trace") else None
    return {
        "ok": True,
        "result": run_here(command["name"], command["args"], seed=command["seed"], trace=trace),
    }


def _warm(name: str) -> None:
    """Import what this experiment needs while the learner reads the question."""
    registry.get(name)
    text = registry.source_file(name).read_text(encoding="utf-8", errors="replace")
    if ".llm(" in text:
        import_module("engine.llm")
    elif "torch" in text:
        import_module("torch")


if __name__ == "__main__":
    main()
