"""What if: a recorded run once more on the real scheduler, with other settings from a step on.

    fork(reader, "fork.itrace", at=418, changes={"max_num_batched_tokens": 256})
    fork(reader, "fork.itrace", scheduler_cls="mine:ShortestFirst")

    recorded   0 ........... at ....................... end      what came when, and what each request says
    fork       0 = recorded = at  decides otherwise ...... end   the same requests and words, in other steps

No model runs: each request says what it said in the recording (`trace_script`), so steps are counted and
never timed. Nothing changed gives the recorded run again, block ids included; tests hold us to it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from common.dotted_path import load_object
from engine.core.errors import RequestRejected
from engine.core.queues import HeapQueue
from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.trace.format import TraceError
from engine.trace.knobs import Settings, parse_knobs, read_settings
from engine.trace.reader import TraceReader
from engine.trace.script import Script, ScriptedRequest, read_script
from engine.trace.watch import Breach, Watch
from engine.trace.writer import TraceWriter, class_path, code_revision

STEP_S = 0.001
"""A fork has no clock: in its file a step begins a millisecond after the one before and takes no time."""
_TRUSTED = ("engine.", "app.", "quizzes.")
"""A class named by a file is imported only from here: opening a file must not run whatever it names."""
INTERFACE = ("add", "abort", "schedule", "update", "has_unfinished")


class StepTimeLimit(BaseException):
    """Raised inside a step that takes too long, by a timer of whoever runs the fork. No `except Exception` of the
    scheduler under test can catch it."""


@dataclass(frozen=True)
class Failure:
    """A scheduler that broke its contract. The trace holds the run up to there."""

    scheduler_cls: str
    step: int
    what: Literal["raised", "stuck", "time", "budget", "rows", "blocks", "state"]
    rule: str
    """What is true of every scheduler."""
    sentence: str
    """Who, when and what, in words."""


@dataclass
class ForkResult:
    """A fork that was run, to its end or to where its scheduler failed."""

    path: Path
    at: int
    changes: dict[str, Any]
    scheduler_cls: str | None
    """The class that took over, if it is another one."""
    num_steps: int = 0
    notes: list[str] = field(default_factory=list)
    """What went otherwise than in the recording, and what could not be repeated, in sentences."""
    failure: Failure | None = None


def fork(
    reader: TraceReader,
    path: str | Path,
    *,
    at: int = 0,
    changes: Mapping[str, Any] | None = None,
    scheduler_cls: str | type | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> ForkResult:
    """Run a recorded workload again and write its trace to `path`.

    Steps before `at` use the recorded settings, `at` and all later ones the changed ones. `on_step(step, of about
    how many)` is called before each step. Raises TraceError for what cannot be forked as asked.
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
    run = _Run(reader, Path(path), at, knobs, recorded, changed, old_class, new_class)
    return run.run(on_step)


def load_class(spec: str | type) -> type:
    """A class given as itself or as a dotted path `module:Class`. Raises TraceError, with the user's own error."""
    if isinstance(spec, type):
        return spec
    if ":" not in spec:
        raise TraceError(f"a scheduler class is written as module:Class, got {spec!r}")
    try:
        found: Any = load_object(spec)
    except Exception as error:  # a module of the user's own may raise anything
        raise TraceError(f"{spec} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, type):
        raise TraceError(f"{spec} is no class but a {type(found).__name__}")
    missing = [method for method in INTERFACE if not callable(getattr(found, method, None))]
    if missing:
        raise TraceError(f"{spec} cannot schedule: it has no {', '.join(missing)} (engine/core/scheduler.py)")
    return found


def _recorded_class(reader: TraceReader, asked: str | type | None) -> type:
    """The class that made the recording. Other people's code runs only when the user names it."""
    name = reader.header.get("scheduler_cls") or class_path(Scheduler)
    if name == class_path(Scheduler):
        return Scheduler
    wanted = asked if isinstance(asked, (str, type(None))) else class_path(asked)
    if name == wanted or name.startswith(_TRUSTED):
        return load_class(asked if name == wanted and asked is not None else name)
    raise TraceError(
        f"{reader.path.name} was recorded with the scheduler {name}, which a file cannot make us import: name it "
        f"yourself (--scheduler {name}) if you trust it"
    )


def _check_take_over(new: type, old: type, at: int) -> None:
    """Whether a class can go on with another's requests, queues and blocks."""
    name = class_path(new)
    if not issubclass(new, Scheduler):
        raise TraceError(
            f"{name} is no subclass of engine.core.scheduler:Scheduler, so it cannot take over a run in its middle: "
            f"it keeps its requests its own way. Fork at step 0 instead of {at}"
        )
    own = [cls for cls in new.__mro__ if cls not in old.__mro__ and "__init__" in cls.__dict__]
    if own:
        raise TraceError(
            f"{class_path(own[0])}.__init__ sets up state of its own, which a scheduler in the middle of a run does "
            f"not have. Fork at step 0 instead of {at}, or do without __init__ (override `sort_key`, for example)"
        )


class _Run:
    """One fork, while it runs."""

    def __init__(
        self,
        reader: TraceReader,
        path: Path,
        at: int,
        knobs: dict[str, Any],
        recorded: Settings,
        changed: Settings,
        old_class: type,
        new_class: type,
    ) -> None:
        self.script: Script = read_script(reader)
        self.recorded, self.changed = recorded, changed
        self.new_class = new_class
        other = class_path(new_class) if new_class is not old_class else None
        self.result = ForkResult(path, at, knobs, other, notes=list(self.script.warnings))
        self.step = 0
        first_class, first = (old_class, recorded) if at else (new_class, changed)
        fingerprint = str(reader.header.get("fingerprint") or "")
        self.scheduler: Any = _create(first_class, first, fingerprint, self._clock)
        self.watch = Watch(self.scheduler, self.script, is_ours=new_class is Scheduler)
        self.tracer = TraceWriter(path, self._header(reader), self.scheduler, clock=self._clock)
        self.live: dict[str, ScriptedRequest] = {}
        self.work: dict[str, int] = {}
        """Tokens that a request's rows computed, in all."""
        self.arrivals = list(reversed(self.script.requests))
        self.at_door: list[ScriptedRequest] = []
        """Their name is still in use: in the recording its bearer had left by now."""
        self.aborts = _by_step(
            r for r in self.script.requests if r.end in ("abort", "error") and _is_outside(r)
        )
        self.stopped: dict[str, int] = {}
        """Requests whose text was complete: the step before which the frontend aborts them."""
        self.out_of_words: list[str] = []

    def run(self, on_step: Callable[[int, int], None] | None) -> ForkResult:
        result, idle_left = self.result, self.script.num_idle_at_end
        try:
            while True:
                if self.step == result.at:
                    self._turn_knobs()
                self._between_steps()
                if self._is_over():
                    if not idle_left:
                        break
                    idle_left -= 1
                if on_step is not None:
                    on_step(self.step, max(self.script.num_steps, self.step + 1))
                self._step()
        except KeyboardInterrupt:
            self.tracer.close()
            raise
        except Breach as breach:
            self._fail(breach.what, breach.rule, breach.sentence, breach)
        except StepTimeLimit as limit:
            rule = "schedule() and update() return"
            self._fail("time", rule, f"did not return in time{_place(limit, self.new_class)}", limit)
        except (Exception, SystemExit) as error:
            said = f"raised {type(error).__name__}: {error}{_place(error, self.new_class)}"
            self._fail("raised", "schedule(), update(), add() and abort() do not raise", said, error)
        self._note_ends()
        result.num_steps = self.step
        with suppress(Exception):  # a broken scheduler may not be fit for the checks of an end
            self.tracer.close(result.notes)
        return result

    # ------------------------------------------------------------------ one step

    def _step(self) -> None:
        """Plan, answer from the script, take in."""
        step = self.step
        num_running = len(self.scheduler.running)
        out = self.scheduler.schedule()
        self.watch.check_plan(self.scheduler, out, step, num_running)
        planned = dict(self.live)
        self._while_in_flight()
        if step in self.script.interrupted and not self.scheduler.requests:
            self.tracer.step(SchedulerOutput(step), ModelRunnerOutput(), [], 0.0)
        else:
            answer = self._answer(out, planned)
            outputs = self.scheduler.update(out, answer)
            self.tracer.step(out, answer, outputs, 0.0)
            self._take(outputs)
        self.step += 1
        if step >= self.result.at:
            self.watch.check_state(self.scheduler, step, num_running)
        self.watch.check_progress(self.scheduler, out, step, waits_for_nobody=not self.arrivals)

    def _answer(self, out: SchedulerOutput, planned: dict[str, ScriptedRequest]) -> ModelRunnerOutput:
        """What the model says: the next words of each script, as far as the row's drafts were right about them."""
        result = ModelRunnerOutput()
        for row in out.scheduled:
            request = self.scheduler.requests.get(row.request_id)
            scripted = self.live.get(row.request_id)
            if request is None or scripted is None or scripted is not planned.get(row.request_id):
                continue  # aborted while in flight; another may have its name by now
            self.work[row.request_id] += row.num_tokens
            if scripted.end == "error" and self.work[row.request_id] >= scripted.work:
                result.errors[row.request_id] = "as in the recording"
            elif row.start + row.num_tokens >= request.num_tokens:
                self._speak(request, scripted, len(row.spec_token_ids), result)
        return result

    def _speak(
        self, request: Request, scripted: ScriptedRequest, num_drafts: int, result: ModelRunnerOutput
    ) -> None:
        said = request.num_output_tokens
        words = scripted.tokens[said:]
        if not words:
            self._run_out(scripted)
            return
        _, confirmed = scripted.drafts_at(said)
        num_tokens = 1 + min(num_drafts, confirmed)
        spoken = words[:num_tokens]
        if scripted.end in ("stop", "length"):  # what is confirmed beyond the end counts, and is dropped
            spoken += [0] * (num_tokens - len(spoken))
        result.sampled_token_ids[request.request_id] = spoken
        drafts, right = scripted.drafts_at(said + len(spoken))
        if drafts:
            following = words[len(spoken) : len(spoken) + right]
            result.draft_token_ids[request.request_id] = following + [0] * (drafts - len(following))

    def _take(self, outputs: list[EngineCoreOutput]) -> None:
        for output in outputs:
            scripted = self.live[output.request_id]
            request = self.scheduler.requests.get(output.request_id)
            if output.finish_reason is not None:
                del self.live[output.request_id]
            elif scripted.end == "stop_string" and request is not None:
                if request.num_output_tokens >= len(scripted.tokens):
                    self.stopped[output.request_id] = self.step + scripted.patience

    # ------------------------------------------------------------------ who comes and goes

    def _between_steps(self) -> None:
        """Arrivals and aborts before a step, in the order in which they came."""
        aborts = [r for r in self.aborts.get(self.step, ()) if not r.history.aborted_late]
        for scripted in (r for r in aborts if r.history.added < self.step):
            self._abort(scripted)
        for name in [name for name, step in self.stopped.items() if step <= self.step]:
            del self.stopped[name]
            if name in self.live:
                self._end(name, "stop")
        while self.arrivals and self._has_come(self.arrivals[-1], late=False):
            self._arrive(self.arrivals.pop())
        for scripted in (r for r in aborts if r.history.added >= self.step):
            self._abort(scripted)
        if self.step in self.script.resets:
            self.scheduler.reset_prefix_cache()
        for scripted in [r for r in self.at_door if r.request_id not in self.live]:
            self.at_door.remove(scripted)
            self._arrive(scripted)

    def _while_in_flight(self) -> None:
        """The same for what came after the step was planned."""
        aborts = [r for r in self.aborts.get(self.step, ()) if r.history.aborted_late]
        for scripted in (
            r for r in aborts if not r.history.record.get("late") or r.history.added < self.step
        ):
            self._abort(scripted)
        while self.arrivals and self._has_come(self.arrivals[-1], late=True):
            self._arrive(self.arrivals.pop())
        for scripted in (r for r in aborts if r.history.record.get("late") and r.history.added == self.step):
            self._abort(scripted)

    def _has_come(self, scripted: ScriptedRequest, late: bool) -> bool:
        added, is_late = scripted.history.added, bool(scripted.history.record.get("late"))
        return added < self.step or (added == self.step and (late or not is_late))

    def _arrive(self, scripted: ScriptedRequest) -> None:
        name = scripted.request_id
        if name in self.live:
            self.at_door.append(scripted)
            self._note(
                f"{name} came a second time before step {self.step}, while the first request of that name still lived: "
                "it waited outside until that one had ended"
            )
            return
        request = _ask(scripted)
        try:
            self.scheduler.add(request)
        except RequestRejected as error:
            self._note(f"{error} (it ran in the recording)")
            return
        self.live[name] = scripted
        self.work[name] = 0
        self.tracer.add(request)

    def _abort(self, scripted: ScriptedRequest) -> None:
        """Its client has hung up, or the engine gave it up, at this step of the recording."""
        if self.live.get(scripted.request_id) is scripted:
            self._end(scripted.request_id, scripted.history.finish_reason or "abort")
        elif scripted in self.at_door:
            self.at_door.remove(scripted)

    def _run_out(self, scripted: ScriptedRequest) -> None:
        """It has said all that is known of it, and is asked for more: end it."""
        self.out_of_words.append(scripted.request_id)
        self._end(scripted.request_id, "stop" if scripted.end == "stop_string" else "abort")

    def _end(self, name: str, why: str) -> None:
        self.scheduler.abort([name])
        self.tracer.abort([name], why)
        del self.live[name]
        self.stopped.pop(name, None)

    def _is_over(self) -> bool:
        """Everybody who ended in the recording has ended; who did not may stay, as long as the recording lasts."""
        if self.arrivals or self.at_door:
            return False
        if not self.live:
            return True
        return self.step >= self.script.num_steps and all(r.end == "unfinished" for r in self.live.values())

    # ------------------------------------------------------------------ the change

    def _turn_knobs(self) -> None:
        """From here on: the changed settings, and another class with the state as it is."""
        if self.step == 0:
            return  # the scheduler was made with them
        scheduler, settings = self.scheduler, self.changed
        kv = scheduler.kv
        scheduler.config, scheduler.cache_config = settings.scheduler, settings.cache
        if self.result.scheduler_cls is not None:
            scheduler.__class__ = self.new_class
        kv._swap = settings.cache.tiers.swap and kv.host is not None
        if settings.cache.enable_prefix_caching and not kv.enable_prefix_caching:
            _begin_hashing(scheduler)
        kv.enable_prefix_caching = settings.cache.enable_prefix_caching
        if isinstance(scheduler, Scheduler):
            moved = _sort_again(scheduler)
            self.tracer.rekey(moved)
        if len(scheduler.running) > settings.scheduler.max_num_seqs:
            self._note(
                f"{len(scheduler.running)} requests ran when max_num_seqs became {settings.scheduler.max_num_seqs}: "
                "they went on, and nobody was admitted until fewer ran"
            )

    # ------------------------------------------------------------------ what is told

    def _header(self, reader: TraceReader) -> dict[str, Any]:
        names = ("model", "seed", "fingerprint")
        args = dict((reader.header.get("config") or {}).get("args", {}))
        args.update({name: value for name, value in self.result.changes.items() if name in args})
        of = reader.header.get("fork", {}).get("of", reader.path.name)
        return {
            **{name: reader.header.get(name) for name in names},
            "code_rev": code_revision(),
            "workload_hash": reader.workload_hash,
            "scheduler_cls": class_path(self.new_class),
            "clock": "steps",
            "config": {**_plain_settings(self.changed), "args": args},
            "fork": {
                "of": reader.path.name if not reader.header.get("fork") else of,
                "at": self.result.at,
                "set": self.result.changes,
                "scheduler_cls": self.result.scheduler_cls,
                "before": _plain_settings(self.recorded),
            },
        }

    def _clock(self) -> float:
        return self.step * STEP_S

    def _note(self, sentence: str) -> None:
        if len(self.result.notes) < 50:
            self.result.notes.append(sentence)

    def _note_ends(self) -> None:
        if self.out_of_words:
            names = ", ".join(self.out_of_words[:5]) + (" …" if len(self.out_of_words) > 5 else "")
            self._note(
                f"{len(self.out_of_words)} requests ({names}) got further than in the recording, which does not know "
                "what they say next: they ended there"
            )

    def _fail(self, what: Any, rule: str, sentence: str, error: BaseException) -> None:
        name = class_path(self.new_class)
        told = f"In step {self.step}, {name} {sentence}. {rule[:1].upper()}{rule[1:]}."
        self.result.failure = Failure(name, self.step, what, rule, told)
        with suppress(Exception):
            self.tracer.error(_Told(told))


class _Told(Exception):
    """Carries a failure's sentence into the trace."""


def _create(cls: type, settings: Settings, fingerprint: str, clock: Callable[[], float]) -> Any:
    options = {"model_fingerprint": fingerprint, "clock": clock}
    try:
        return cls(settings.scheduler, settings.cache, **options)
    except Exception as error:
        raise TraceError(
            f"{class_path(cls)} cannot be created: {type(error).__name__}: {error}. It is called as "
            "Class(SchedulerConfig, CacheConfig, model_fingerprint=..., clock=...)"
        ) from error


def _ask(scripted: ScriptedRequest) -> Request:
    try:
        return scripted.make()
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(
            f"request {scripted.request_id!r} cannot be asked again, its record makes no sense: {error}"
        ) from error


def _is_outside(scripted: ScriptedRequest) -> bool:
    """Whether it ended by no row of its own: aborted, or given up by the engine before it ever ran."""
    return scripted.history.ended is not None and (scripted.end == "abort" or not scripted.history.row_steps)


def _by_step(requests: Iterable[ScriptedRequest]) -> dict[int, list[ScriptedRequest]]:
    by_step: dict[int, list[ScriptedRequest]] = {}
    for scripted in requests:
        if scripted.history.ended is not None:
            by_step.setdefault(scripted.history.ended, []).append(scripted)
    return by_step


def _begin_hashing(scheduler: Any) -> None:
    """Prefix caching is switched on: name the blocks that live requests have filled; the next step publishes them."""
    scheduler.kv.enable_prefix_caching = True
    for request in scheduler.requests.values():
        scheduler.kv.hasher.extend(request)
        request.num_published_blocks = max(request.num_published_blocks, request.num_blocks_behind_window)


def _sort_again(scheduler: Scheduler) -> list[Request]:
    """Give every live request the place that the scheduler's policy says now. Returns those that moved."""
    moved = []
    for request in scheduler.requests.values():
        key = scheduler.sort_key(request, request.sort_key[-1])
        if key != request.sort_key:
            request.sort_key = key
            moved.append(request)
    if moved:
        queue = HeapQueue()
        running = set(map(id, scheduler.running))
        for request in scheduler.requests.values():
            if id(request) not in running:
                queue.push(request)
        scheduler.waiting = queue
        scheduler.running.sort(key=lambda request: request.sort_key)
    return moved


def _plain_settings(settings: Settings) -> dict[str, Any]:
    """As a header holds them."""

    def plain(config: Any) -> dict[str, Any]:
        return {f.name: getattr(config, f.name) for f in fields(config)}

    cache = plain(settings.cache)
    cache["tiers"] = plain(settings.cache.tiers)
    return {"scheduler": plain(settings.scheduler), "cache": cache}


def _place(error: BaseException, cls: type) -> str:
    """The deepest line of the class's own module that the error went through, or the deepest of all."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    module = import_module(cls.__module__) if cls.__module__ != "__main__" else None
    file = getattr(module, "__file__", None)
    own = [frame for frame in frames if frame.filename == file]
    frame = (own or list(frames))[-1]
    return f" ({Path(frame.filename).name}:{frame.lineno})"
