"""One fork while it runs: the recorded requests on the real scheduler, step by step, without a model."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.core.errors import RequestRejected
from engine.core.queues import HeapQueue
from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler
from engine.trace.format import TraceError
from engine.trace.header import class_path, code_revision
from engine.trace.knobs import Settings
from engine.trace.protocol import Trace
from engine.trace.script import Script, ScriptedRequest, read_script
from engine.trace.watch import Breach, Watch
from engine.trace.writer import TraceWriter
from prep_common.text import counted

STEP_S = 0.001  # a fork has no clock: in its file, steps are a millisecond apart and take no time


class StepTimeLimit(BaseException):
    """A timer of the fork's process raises it inside a step that takes too long. It is not an Exception, so that
    the scheduler under test does not catch it by accident."""


@dataclass(frozen=True)
class Failure:
    """Violation of the contract by a scheduler. The trace holds the run up to that step."""

    scheduler_cls: str
    step: int
    what: Literal["raised", "stuck", "time", "budget", "rows", "blocks", "state"]
    rule: str  # the rule it broke
    sentence: str


@dataclass
class ForkResult:
    """A fork that ran to its end, or until its scheduler failed."""

    path: Path
    at: int
    changes: dict[str, Any]
    scheduler_cls: str | None  # the class that replaced the recorded one; None: the same class
    num_steps: int = 0
    notes: list[str] = field(default_factory=list)  # what differed from the recording
    failure: Failure | None = None


class ScriptedRun:
    """One fork, while it runs."""

    def __init__(
        self,
        reader: Trace,
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
        self.work: dict[str, int] = {}  # request id -> tokens that its rows computed
        self.arrivals = list(reversed(self.script.requests))
        self.held_back: list[ScriptedRequest] = []  # arrived, but an unfinished request still has their id
        self.aborts: dict[int | None, list[ScriptedRequest]] = {}
        for request in sorted(self.script.requests, key=lambda scripted: scripted.history.abort_order):
            if request.end in ("abort", "error") and _is_outside(request):
                self.aborts.setdefault(request.history.ended, []).append(request)
        self.stopped: dict[str, int] = {}  # complete texts -> the step before which they are aborted
        self.exhausted: list[str] = []  # requests that got further than in the recording

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
        with suppress(Exception):  # the closing checks may raise on a broken scheduler
            self.tracer.close(result.notes)
        return result

    # ------------------------------------------------------------------ one step

    def _step(self) -> None:
        """Run one step: plan, take the model's output from the script, update."""
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
        self.watch.check_progress(self.scheduler, out, step, all_arrived=not self.arrivals)

    def _answer(self, out: SchedulerOutput, planned: dict[str, ScriptedRequest]) -> ModelRunnerOutput:
        """The model's output: the next tokens of each script, as many as the row's drafts confirm."""
        result = ModelRunnerOutput()
        for row in out.scheduled:
            request = self.scheduler.requests.get(row.request_id)
            scripted = self.live.get(row.request_id)
            if request is None or scripted is None or scripted is not planned.get(row.request_id):
                continue  # aborted while in flight; another request may have its id by now
            self.work[row.request_id] += row.num_tokens
            if scripted.end == "error" and self.work[row.request_id] >= scripted.work:
                result.errors[row.request_id] = "as in the recording"
            elif row.start + row.num_tokens >= request.num_tokens:
                self._sample(request, scripted, len(row.spec_token_ids), result)
        return result

    def _sample(
        self, request: Request, scripted: ScriptedRequest, num_drafts: int, result: ModelRunnerOutput
    ) -> None:
        num_outputs = request.num_output_tokens
        left = scripted.tokens[num_outputs:]
        if not left:
            self.exhausted.append(scripted.request_id)
            self._end(scripted.request_id, "stop" if scripted.end == "stop_string" else "abort")
            return
        _, confirmed = scripted.drafts_at(num_outputs)
        num_tokens = 1 + min(num_drafts, confirmed)
        sampled = left[:num_tokens]
        if scripted.end in ("stop", "length"):  # tokens confirmed beyond the end are counted, then dropped
            sampled += [0] * (num_tokens - len(sampled))
        result.sampled_token_ids[request.request_id] = sampled
        drafts, right = scripted.drafts_at(num_outputs + len(sampled))
        if drafts:
            following = left[len(sampled) : len(sampled) + right]
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

    # ------------------------------------------------------------------ arrivals and aborts

    def _between_steps(self) -> None:
        """Replay the arrivals and aborts before a step, in their recorded order."""
        aborts = [r for r in self.aborts.get(self.step, ()) if not r.history.aborted_late]
        self._abort(r for r in aborts if r.history.added < self.step)
        for name in [name for name, step in self.stopped.items() if step <= self.step]:
            del self.stopped[name]
            if name in self.live:
                self._end(name, "stop")
        self._take_arrivals(late=False)
        self._abort(r for r in aborts if r.history.added >= self.step)
        if self.step in self.script.resets:
            self.scheduler.reset_prefix_cache()
        for scripted in [r for r in self.held_back if r.request_id not in self.live]:
            self.held_back.remove(scripted)
            self._arrive(scripted)

    def _while_in_flight(self) -> None:
        """Replay the arrivals and aborts after the step was planned."""
        aborts = [r for r in self.aborts.get(self.step, ()) if r.history.aborted_late]
        self._abort(r for r in aborts if not r.history.arrived_during(self.step))
        self._take_arrivals(late=True)
        self._abort(r for r in aborts if r.history.arrived_during(self.step))

    def _take_arrivals(self, late: bool) -> None:
        """Replay the arrivals up to this step; without `late`, not those of while it was in flight."""
        while self.arrivals and self.arrivals[-1].history.added <= self.step:
            history = self.arrivals[-1].history
            if history.arrived_during(self.step) and not late:
                return
            self._arrive(self.arrivals.pop())

    def _arrive(self, scripted: ScriptedRequest) -> None:
        name = scripted.request_id
        if name in self.live:
            self.held_back.append(scripted)
            self._note(
                f"a second request {name} arrived before step {self.step}, while the first was unfinished: it was "
                "held back until the first had ended"
            )
            return
        try:
            request = scripted.make()
        except (KeyError, TypeError, ValueError) as error:
            why = f"its record is malformed: {error}"
            raise TraceError(f"request {name!r} cannot be repeated, {why}") from error
        try:
            self.scheduler.add(request)
        except RequestRejected as error:
            self._note(f"{error} (it ran in the recording)")
            return
        self.live[name] = scripted
        self.work[name] = 0
        self.tracer.add(request)

    def _abort(self, requests: Iterable[ScriptedRequest]) -> None:
        """Abort requests at the step at which their clients or the engine aborted them in the recording."""
        for scripted in requests:
            if self.live.get(scripted.request_id) is scripted:
                self._end(scripted.request_id, scripted.history.finish_reason or "abort")
            elif scripted in self.held_back:
                self.held_back.remove(scripted)

    def _end(self, name: str, why: str) -> None:
        self.scheduler.abort([name])
        self.tracer.abort([name], why)
        del self.live[name]
        self.stopped.pop(name, None)

    def _is_over(self) -> bool:
        """Whether all requests that ended in the recording have ended, and all its steps have passed."""
        if self.arrivals or self.held_back:
            return False
        if not self.live:
            return True
        return self.step >= self.script.num_steps and all(r.end == "unfinished" for r in self.live.values())

    # ------------------------------------------------------------------ the change

    def _turn_knobs(self) -> None:
        """Apply the changed settings and the new class to the running scheduler."""
        if self.step == 0:
            return  # the scheduler was created with them
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
                f"{counted(len(scheduler.running), 'request')} ran when max_num_seqs became "
                f"{settings.scheduler.max_num_seqs}: they continued, and none was admitted until fewer ran"
            )

    # ------------------------------------------------------------------ header, notes, failure

    def _header(self, reader: Trace) -> dict[str, Any]:
        args = dict((reader.header.get("config") or {}).get("args", {}))
        args.update({name: value for name, value in self.result.changes.items() if name in args})
        return {
            **{name: reader.header.get(name) for name in ("model", "seed", "fingerprint")},
            "code_rev": code_revision(),
            "workload_hash": reader.workload_hash,
            "scheduler_cls": class_path(self.new_class),
            "clock": "steps",
            "config": {**asdict(self.changed), "args": args},
            "fork": {
                "of": (reader.header.get("fork") or {}).get("of", reader.path.name),
                "at": self.result.at,
                "set": self.result.changes,
                "scheduler_cls": self.result.scheduler_cls,
                "before": asdict(self.recorded),
            },
        }

    def _clock(self) -> float:
        return self.step * STEP_S

    def _note(self, sentence: str) -> None:
        if len(self.result.notes) < 50:
            self.result.notes.append(sentence)

    def _note_ends(self) -> None:
        if self.exhausted:
            names = ", ".join(self.exhausted[:5]) + (" …" if len(self.exhausted) > 5 else "")
            self._note(
                f"{counted(len(self.exhausted), 'request')} ({names}) got further than in the recording, "
                "which does not hold their next tokens: they ended there"
            )

    def _fail(self, what: Any, rule: str, sentence: str, error: BaseException) -> None:
        name = class_path(self.new_class)
        text = f"In step {self.step}, {name} {sentence}. {rule[:1].upper()}{rule[1:]}."
        self.result.failure = Failure(name, self.step, what, rule, text)
        with suppress(Exception):
            self.tracer.error(_SchedulerFailed(text))


class _SchedulerFailed(Exception):
    """Carries a failure's sentence into the trace."""


def _create(cls: type, settings: Settings, fingerprint: str, clock: Callable[[], float]) -> Any:
    try:
        return cls(settings.scheduler, settings.cache, model_fingerprint=fingerprint, clock=clock)
    except Exception as error:
        raise TraceError(
            f"{class_path(cls)} cannot be created: {type(error).__name__}: {error}. It is called as "
            "Class(SchedulerConfig, CacheConfig, model_fingerprint=..., clock=...)"
        ) from error


def _is_outside(scripted: ScriptedRequest) -> bool:
    """Whether it ended outside its rows: aborted, or dropped by the engine before it ran."""
    return scripted.history.ended is not None and (scripted.end == "abort" or not scripted.history.row_steps)


def _begin_hashing(scheduler: Any) -> None:
    """Switch on prefix caching: hash the blocks that live requests have filled. The next step publishes them."""
    scheduler.kv.enable_prefix_caching = True
    for request in scheduler.requests.values():
        scheduler.kv.hasher.extend(request)
        request.num_published_blocks = max(request.num_published_blocks, request.num_blocks_behind_window)


def _sort_again(scheduler: Scheduler) -> list[Request]:
    """Sort all live requests by the scheduler's current policy. Returns those whose key changed."""
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


def _place(error: BaseException, cls: type) -> str:
    """File and line of the deepest frame in the class's own module, or of the deepest frame."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    module = None if cls.__module__ == "__main__" else sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    frame = ([frame for frame in frames if frame.filename == file] or frames)[-1]
    return f" ({Path(frame.filename).name}:{frame.lineno})"
