"""Run a recorded workload again on the real scheduler, with other settings from a step on.

    fork(reader, "fork.itrace", at=418, changes={"max_num_batched_tokens": 256})
    fork(reader, "fork.itrace", scheduler_cls="mine:ShortestFirst")

    recorded   0 ........... at ....................... end      arrivals, aborts and output tokens
    fork       0 = recorded = at  other decisions ........ end   the same requests and tokens, in other steps

No model runs: each request outputs its recorded tokens (`engine.trace.script`), so steps are counted and
never timed. Without a change the fork equals the recorded run, block ids included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.core.scheduler import Scheduler
from engine.trace.format import TraceError
from engine.trace.header import class_path
from engine.trace.knobs import parse_knobs, read_settings
from engine.trace.protocol import Trace
from engine.trace.scripted_run import ForkResult, ScriptedRun
from prep_common.dotted_path import load_object

_TRUSTED = ("engine.", "app.", "quizzes.")  # only from here: opening a file must not run foreign code
INTERFACE = ("add", "abort", "schedule", "update", "has_unfinished")


def fork(
    reader: Trace,
    path: str | Path,
    *,
    at: int = 0,
    changes: Mapping[str, Any] | None = None,
    scheduler_cls: str | type | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> ForkResult:
    """Run a recorded workload again and write its trace to `path`.

    Steps before `at` use the recorded settings, `at` and all later ones the changed ones. `on_step(step, estimated
    number of steps)` is called before each step. Raises TraceError if the run cannot be forked as asked.
    """
    if not 0 <= at < max(1, reader.num_steps):
        last = f"0 to {reader.num_steps - 1}" if reader.num_steps else "none"
        raise TraceError(f"{reader.path.name} has no step {at} to fork at: its steps are {last}")
    if Path(path).exists() and Path(path).samefile(reader.path):
        raise TraceError(f"the fork would overwrite the run it comes from: give it another name than {path}")
    knobs = parse_knobs(changes or {}, at)
    recorded = read_settings(reader)
    changed = recorded.changed(knobs)
    if at and changed.cache.tiers.swap and not recorded.cache.tiers.num_host_blocks:
        raise TraceError(
            "preemption_mode=swap needs host memory, and the recorded engine had none: fork at step 0 with "
            "num_host_blocks"
        )
    old_class = _recorded_class(reader, scheduler_cls)
    new_class = old_class if scheduler_cls is None else load_class(scheduler_cls)
    if at and new_class is not old_class:
        _check_take_over(new_class, old_class, at)
    return ScriptedRun(reader, Path(path), at, knobs, recorded, changed, old_class, new_class).run(on_step)


def load_class(spec: str | type) -> type:
    """Import a scheduler class from `module:Class`; a class is returned as is. Raises TraceError with the cause."""
    if isinstance(spec, type):
        return spec
    if ":" not in spec:
        raise TraceError(f"a scheduler class is written as module:Class, got {spec!r}")
    try:
        loaded: Any = load_object(spec)
    except Exception as error:  # a user's module may raise anything
        raise TraceError(f"{spec} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(loaded, type):
        raise TraceError(f"{spec} is not a class but a {type(loaded).__name__}")
    missing = [method for method in INTERFACE if not callable(getattr(loaded, method, None))]
    if missing:
        raise TraceError(f"{spec} cannot schedule: it lacks {', '.join(missing)} (engine/core/scheduler.py)")
    return loaded


def _recorded_class(reader: Trace, asked: str | type | None) -> type:
    """The class that made the recording. Foreign code is imported only if the user names it."""
    name = reader.header.get("scheduler_cls") or class_path(Scheduler)
    if name == class_path(Scheduler):
        return Scheduler
    wanted = asked if isinstance(asked, (str, type(None))) else class_path(asked)
    if name == wanted or name.startswith(_TRUSTED):
        return load_class(asked if name == wanted and asked is not None else name)
    raise TraceError(
        f"{reader.path.name} was recorded with the scheduler {name}, which is not imported because a file names it: "
        f"pass --scheduler {name} if you trust it"
    )


def _check_take_over(new: type, old: type, at: int) -> None:
    """Raise TraceError if a class cannot continue with another's requests, queues and blocks."""
    name = class_path(new)
    if not issubclass(new, Scheduler):
        raise TraceError(
            f"{name} is not a subclass of engine.core.scheduler:Scheduler, so it cannot take over a running "
            f"scheduler's state. Fork at step 0 instead of {at}"
        )
    own = [cls for cls in new.__mro__ if cls not in old.__mro__ and "__init__" in cls.__dict__]
    if own:
        raise TraceError(
            f"{class_path(own[0])}.__init__ sets up additional state, which a running scheduler does not have. Fork at "
            f"step 0 instead of {at}, or remove __init__ (override `sort_key`, for example)"
        )
