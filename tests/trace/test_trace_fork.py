"""A fork is the real scheduler on a recorded workload: nothing changed gives the recorded run, to the block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import CacheConfig, SchedulerConfig
from engine.core.integrity import find_problems
from engine.core.request import Request
from engine.core.sched_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from engine.core.scheduler import Scheduler, StepPlan
from engine.sampling_params import SamplingParams
from engine.trace.diff import diff
from engine.trace.fork import fork, load_class
from engine.trace.format import TraceError
from engine.trace.header import class_path
from engine.trace.knobs import parse_knobs, read_settings
from engine.trace.reader import TraceReader
from engine.trace.script import DraftRow, ScriptedRequest, read_script
from engine.trace.scripted_run import ForkResult, StepTimeLimit
from engine.trace.writer import TraceWriter
from tests.core.workloads import Abort, Ask, Workload
from tests.seeds import seeds
from tests.trace.fork_workloads import crowded_run, decisions, first_difference, traced_run
from tests.trace.trace_workloads import random_run


def forked(reader: TraceReader, folder: Path, **options: Any) -> tuple[ForkResult, TraceReader]:
    result = fork(reader, folder / "fork.itrace", **options)
    return result, TraceReader(result.path)


def assert_is_the_recorded_run(a: TraceReader, folder: Path, at: int) -> None:
    result, b = forked(a, folder, at=at)
    assert result.failure is None, a.path
    assert (b.problems, b.warnings) == ([], []), f"the fork's own checks of {a.path}"
    assert first_difference(a, b) == "", a.path
    assert a.workload_hash == b.workload_hash, a.path


@pytest.mark.parametrize("first", range(0, 36, 12))
def test_nothing_changed_is_the_recorded_run_block_for_block(tmp_path: Path, first: int) -> None:
    """Priorities, chunks, prefix hits, preemptions, host tiers, windows, drafts, aborts at any moment, reused names."""
    for seed in seeds(12, first):
        run = random_run(tmp_path / f"seed-{seed}.itrace", seed)
        assert_is_the_recorded_run(TraceReader(run.path), tmp_path, at=0)


@pytest.mark.parametrize("first", range(0, 48, 16))
def test_so_it_is_among_adapters_lookahead_errors_and_interrupts(tmp_path: Path, first: int) -> None:
    for seed in seeds(16, first):
        reader = crowded_run(tmp_path / f"seed-{seed}.itrace", seed)
        assert_is_the_recorded_run(reader, tmp_path, at=reader.num_steps // 2)


def test_aborts_before_one_step_are_repeated_in_their_order(tmp_path: Path) -> None:
    asks = [Ask(name, 0, [token] * 9, 20, eos=False) for token, name in enumerate(("first", "second"))]
    asks.append(Ask("third", 6, [2] * 30))  # gets blocks in the order in which they were freed
    aborts = [Abort("second", 4, "after"), Abort("first", 5, "before")]
    limits = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=100)
    reader = traced_run(tmp_path / "run.itrace", Workload(limits, CacheConfig(20, 4), asks, aborts))
    assert_is_the_recorded_run(reader, tmp_path, at=0)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[TraceReader]:
    folder = tmp_path_factory.mktemp("recordings")
    return [TraceReader(random_run(folder / f"{seed}.itrace", seed).path) for seed in range(40)]


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_batched_tokens": 5},
        {"max_num_seqs": 2},
        {"long_prefill_token_threshold": 3},
        {"scheduling_policy": "priority"},
        {"scheduling_policy": "fcfs"},
        {"enable_prefix_caching": False},
        {"enable_prefix_caching": True},
        {"preemption_mode": "recompute"},
    ],
    ids=lambda changes: "-".join(f"{name}={value}" for name, value in changes.items()),
)
def test_until_the_step_of_the_change_the_run_is_the_recorded_one_and_then_it_keeps_every_rule(
    tmp_path: Path, recordings: list[TraceReader], changes: dict[str, Any]
) -> None:
    ((name, value),) = changes.items()
    others = [a for a in recordings if read_settings(a).get(name) != value]
    if name == "enable_prefix_caching" and not value:
        others = [a for a in others if not read_settings(a).cache.tiers.offload]  # which needs it
    num_changed = 0
    for a in others[:7]:
        at = a.num_steps // 3
        result, b = forked(a, tmp_path, at=at, changes=changes)
        assert result.failure is None and b.problems == [] and b.is_complete
        for step in range(at):
            before, after = decisions(a, step), decisions(b, step)
            assert before == after
        assert a.workload_hash == b.workload_hash
        for one, other in zip(a.requests, b.requests, strict=True):
            shorter = min(len(one.tokens), len(other.tokens))
            assert one.tokens[:shorter] == other.tokens[:shorter]
            if one.finish_reason in ("stop", "length"):
                assert (one.finish_reason, one.tokens) == (other.finish_reason, other.tokens)
        num_changed += first_difference(a, b) != ""
    assert num_changed >= 2, "the knob turns something"


def test_memory_changes_at_step_0_only(tmp_path: Path) -> None:
    a = TraceReader(random_run(tmp_path / "run.itrace", 2).path)
    with pytest.raises(TraceError, match=r"num_blocks shapes the cache's memory.*--at 0"):
        fork(a, tmp_path / "fork.itrace", at=3, changes={"num_blocks": 50})
    result, b = forked(a, tmp_path, changes={"num_blocks": 200, "block_size": 2})
    assert result.failure is None and (b.num_blocks, b.block_size) == (200, 2)
    assert not b.events("preempt")


def test_what_no_longer_fits_is_refused_and_said(tmp_path: Path) -> None:
    a = TraceReader(random_run(tmp_path / "run.itrace", 3).path)
    result, b = forked(a, tmp_path, changes={"num_blocks": 4})
    assert result.failure is None
    assert len(b.requests) < len(a.requests)
    assert any("rejected" in note and "ran in the recording" in note for note in result.notes)
    assert b.notes == result.notes
    found = diff(a, b)
    assert not found.same_workload and found.workload_notes[0].startswith("only A has")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"max_num_batched_tokns": 1}, "did you mean 'max_num_batched_tokens'"),
        ({"nothing_like_it_at_all": 1}, "known: max_num_batched_tokens"),
        ({"max_num_seqs": "many"}, "max_num_seqs must be a whole number"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": -1}, "and not negative"),
        ({"scheduling_policy": "lifo"}, "choose fcfs or priority"),
        ({"enable_prefix_caching": "perhaps"}, "must be true or false"),
        ({"preemption_mode": "swap"}, "needs host memory"),
        ({"preemption_mode": "magic"}, "recompute or swap"),
        ({"swap_space": 1}, "num_host_blocks instead"),
        ({"enable_chunked_prefill": "off"}, "max_model_len|forbids chunks"),
        ({"block_size": 1e400}, "whole number"),
    ],
)
def test_a_knob_that_cannot_be_turned_says_what_can(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    a = TraceReader(random_run(tmp_path / "run.itrace", 2).path)
    with pytest.raises(TraceError, match=complaint):
        fork(a, tmp_path / "fork.itrace", changes=changes)
    assert not (tmp_path / "fork.itrace").exists()


def test_knobs_have_names_that_people_know() -> None:
    words = {"--max-num-seqs": " 1_000 ", "policy": "priority", "enable_prefix_caching": "off"}
    assert parse_knobs(words, at=7) == {
        "max_num_seqs": 1000,
        "scheduling_policy": "priority",
        "enable_prefix_caching": False,
    }


@pytest.mark.parametrize("at", [-1, 10_000])
def test_there_is_no_fork_outside_the_run(tmp_path: Path, at: int) -> None:
    a = TraceReader(random_run(tmp_path / "run.itrace", 2).path)
    with pytest.raises(TraceError, match="its steps are 0 to"):
        fork(a, tmp_path / "fork.itrace", at=at)


def test_a_fork_never_overwrites_its_recording(tmp_path: Path) -> None:
    a = TraceReader(random_run(tmp_path / "run.itrace", 2).path)
    with pytest.raises(TraceError, match="overwrite"):
        fork(a, a.path)


def test_a_fork_of_a_fork_is_forked_like_any_run(tmp_path: Path) -> None:
    a = TraceReader(random_run(tmp_path / "run.itrace", 4).path)
    fork(a, tmp_path / "one.itrace", changes={"max_num_batched_tokens": 7})
    one = TraceReader(tmp_path / "one.itrace")
    assert_is_the_recorded_run(one, tmp_path, at=one.num_steps // 2)
    assert one.header["fork"]["of"] == "run.itrace" and one.header["clock"] == "steps"


def test_a_header_without_settings_says_so(tmp_path: Path) -> None:
    a = TraceReader(random_run(tmp_path / "run.itrace", 4).path)
    del a.header["config"]["scheduler"]
    with pytest.raises(TraceError, match="does not hold its scheduler's settings"):
        fork(a, tmp_path / "fork.itrace")


def test_older_headers_have_their_tiers_as_text(tmp_path: Path) -> None:
    a = TraceReader(random_run(tmp_path / "run.itrace", 1).path)
    tiers = read_settings(a).cache.tiers
    assert tiers.num_host_blocks == 12
    a.header["config"]["cache"]["tiers"] = str(tiers)
    assert read_settings(a).cache.tiers == tiers


def test_headers_hold_nested_settings_as_objects(tmp_path: Path) -> None:
    a = TraceReader(random_run(tmp_path / "run.itrace", 1).path)
    tiers = a.header["config"]["cache"]["tiers"]
    assert tiers == {"num_host_blocks": 12, "swap": True, "offload": True, "block_bytes": 100}
    assert a.header["scheduler_cls"] == class_path(Scheduler)


# ---------------------------------------------------------------------- the script


def test_drafts_are_replayed_by_position() -> None:
    request = ScriptedRequest(None, "length", list(range(20)))
    assert request.drafts_at(3) == (0, 0)
    request.rows = {5: DraftRow(4, 2, 3), 8: DraftRow(3, 0, 1)}
    assert [request.drafts_at(n) for n in range(4, 10)] == [(0, 0), (4, 2), (3, 1), (2, 0), (3, 0), (0, 0)]


def test_a_stop_string_ends_a_request_after_as_many_tokens_in_any_step(tmp_path: Path) -> None:
    """The frontend finds it in the text and aborts: before another step when the scheduler is slower."""
    path = tmp_path / "run.itrace"
    record_two(path, stop_after=4)
    a = TraceReader(path)
    assert a.find("long").finish_reason == "stop" and a.find("long").aborted
    result, b = forked(a, tmp_path, changes={"max_num_batched_tokens": 2})
    assert result.failure is None and result.notes == []
    slow = b.find("long")
    assert (slow.finish_reason, slow.aborted, len(slow.tokens)) == ("stop", True, 4)
    assert slow.ended > a.find("long").ended


def test_a_client_hangs_up_at_its_own_time(tmp_path: Path) -> None:
    path = tmp_path / "run.itrace"
    record_two(path, hang_up=8)
    a = TraceReader(path)
    _, slower = forked(a, tmp_path, changes={"max_num_batched_tokens": 2})
    assert slower.find("long").ended == a.find("long").ended == 8
    assert len(slower.find("long").tokens) < len(a.find("long").tokens)
    result, faster = forked(a, tmp_path, changes={"max_num_batched_tokens": 64})
    assert faster.find("long").aborted and faster.find("long").ended < 8
    assert any("got further than in the recording" in note for note in result.notes)


def test_what_cannot_be_repeated_is_said() -> None:
    class Recorded:
        requests: list[Any] = []
        error_steps: list[int] = []
        num_steps = 0

        def counter_totals(self) -> dict[str, int]:
            return {"num_kv_waits": 2, "encoder_cache_queries": 1}

        def steps_with(self, reason: object) -> list[int]:
            return [4]

        def events(self, kind: str) -> list[Any]:
            return []

    warnings = " ".join(read_script(Recorded()).warnings)
    assert "grammar" in warnings and "connector" in warnings and "images" in warnings


def record_two(path: Path, stop_after: int = 0, hang_up: int = 0) -> None:
    """Two requests, 12 tokens a step; one of them ends from outside."""
    scheduler = Scheduler(SchedulerConfig(12, 4, 100), CacheConfig(40, 4))
    with TraceWriter(path, {}, scheduler) as tracer:
        for name, length in (("long", 40), ("short", 6)):
            prompt = [hash(name) % 1000 + i for i in range(length)]
            request = Request(name, prompt, SamplingParams(max_tokens=20), arrival_time=1.0)
            scheduler.add(request)
            tracer.add(request)
        step = said = 0
        while scheduler.has_unfinished():
            if (stop_after and said == stop_after) or (hang_up and step == hang_up):
                scheduler.abort(["long"])
                tracer.abort(["long"], "stop" if stop_after else "abort")
                said = -1
            out, result = scheduler.schedule(), ModelRunnerOutput()
            for row in out.scheduled:
                request = scheduler.requests[row.request_id]
                if row.start + row.num_tokens >= request.num_tokens:
                    result.sampled_token_ids[row.request_id] = [step]
                    said += row.request_id == "long" and said >= 0
            tracer.step(out, result, scheduler.update(out, result), 0.0)
            step += 1


# ---------------------------------------------------------------------- faulty schedulers


class Raises(Scheduler):
    """In its tenth step."""

    def schedule(self) -> SchedulerOutput:
        if self.stats.step == 9:
            raise RuntimeError("my list is empty")
        return super().schedule()


class Exits(Scheduler):
    def schedule(self) -> SchedulerOutput:
        raise SystemExit(3)


class Leaks(Scheduler):
    """Forgets to give blocks back."""

    def _finish(self, request: Request, status: Any) -> None:
        blocks, request.blocks = request.blocks[:1], request.blocks[1:]
        super()._finish(request, status)
        request.blocks = blocks


class Lazy(Scheduler):
    def _schedule_running(self, plan: StepPlan) -> None: ...

    def _schedule_waiting(self, plan: StepPlan) -> None: ...


class Greedy(Scheduler):
    """Takes twice the budget."""

    def _schedule_running(self, plan: StepPlan) -> None:
        plan.budget_left *= 2
        super()._schedule_running(plan)


class Ghosts(Scheduler):
    """Schedules a request that has ended."""

    def schedule(self) -> SchedulerOutput:
        out = super().schedule()
        for row in out.scheduled[:1]:
            row.request_id = "r-none"
        return out


class Repeats(Scheduler):
    def schedule(self) -> SchedulerOutput:
        out = super().schedule()
        out.scheduled += out.scheduled[:1]
        return out


class Unsorted(Scheduler):
    """Leaves `running` in another order."""

    def update(self, out: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        outputs = super().update(out, result)
        self.running.reverse()
        return outputs


class Skips(Scheduler):
    """Claims that a token is computed that is not."""

    def schedule(self) -> SchedulerOutput:
        out = super().schedule()
        for row in out.scheduled[:1]:
            row.start += 1
        return out


class Thrashes(Scheduler):
    """Preempts all requests before each step: rows without end and no output."""

    def schedule(self) -> SchedulerOutput:
        while self.running:
            self._preempt(self.running[-1])
        return super().schedule()


class Mute(Scheduler):
    def schedule(self) -> SchedulerOutput:
        return None


BROKEN = {
    Raises: ("raised", "RuntimeError: my list is empty"),
    Exits: ("raised", "SystemExit"),
    Leaks: ("blocks", "has 0 owners"),
    Lazy: ("stuck", "scheduled no request for"),
    Greedy: ("budget", "over the budget"),
    Ghosts: ("rows", "'r-none', which has ended or never arrived"),
    Repeats: ("rows", "twice"),
    Unsorted: ("state", "running is not sorted"),
    Skips: ("rows", "starts where its request's KV ends"),
    Mute: ("rows", "returned a NoneType"),
}


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> TraceReader:
    """Several run at once, chunks, preemptions."""
    path = tmp_path_factory.mktemp("busy") / "run.itrace"
    for seed in range(100):
        random_run(path, seed, num_requests=20)
        reader = TraceReader(path)
        swaps = read_settings(reader).cache.tiers.swap
        if max(reader.series.running) > 4 and reader.events("preempt") and not swaps:
            return reader
    raise AssertionError("no seed is busy")


@pytest.mark.parametrize("at", [0, 12])
@pytest.mark.parametrize("cls", BROKEN, ids=lambda cls: cls.__name__)
def test_a_broken_scheduler_is_named_with_its_step_and_the_rule_and_the_run_is_kept(
    busy: TraceReader, tmp_path: Path, cls: type, at: int
) -> None:
    if cls is Raises and at:
        at = 5
    result, b = forked(busy, tmp_path, at=at, scheduler_cls=cls)
    what, words = BROKEN[cls]
    failure = result.failure
    assert failure is not None and failure.what == what
    assert failure.step >= at and failure.sentence.startswith(f"In step {failure.step}, {class_path(cls)} ")
    assert words in failure.sentence
    assert b.num_steps >= failure.step - 200 and b.error is not None and class_path(cls) in b.error
    assert not any("is malformed" in problem.message for problem in b.problems)
    for step in range(min(at, b.num_steps)):
        assert decisions(b, step) == decisions(busy, step)


def test_a_raising_line_is_named(busy: TraceReader, tmp_path: Path) -> None:
    result, _ = forked(busy, tmp_path, scheduler_cls=Raises)
    assert result.failure is not None and result.failure.step == 10
    assert "test_trace_fork.py:" in result.failure.sentence


def test_a_run_without_end_is_ended(tmp_path: Path) -> None:
    record_two(tmp_path / "run.itrace")
    a = TraceReader(tmp_path / "run.itrace")
    changes = {"max_num_batched_tokens": 4, "enable_prefix_caching": False}
    result, b = forked(a, tmp_path, scheduler_cls=Thrashes, changes=changes)
    assert result.failure is not None and result.failure.what == "stuck"
    assert "a finite workload ends" in result.failure.sentence.lower()
    assert b.num_steps > 500


def test_a_step_without_end_is_named_when_the_timer_of_the_caller_raises(
    busy: TraceReader, tmp_path: Path
) -> None:
    class Stubborn(Scheduler):
        """Swallows every exception."""

        def schedule(self) -> SchedulerOutput:
            try:
                if self.stats.step == 3:
                    raise StepTimeLimit
            except Exception:
                pass
            return super().schedule()

    result, b = forked(busy, tmp_path, scheduler_cls=Stubborn)
    assert result.failure is not None and result.failure.what == "time"
    assert "did not return in time" in result.failure.sentence and b.num_steps == 4


def test_ctrl_c_is_passed_on(busy: TraceReader, tmp_path: Path) -> None:
    def interrupt(step: int, of: int) -> None:
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fork(busy, tmp_path / "fork.itrace", on_step=interrupt)


class HasItsOwnInit(Scheduler):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.my_list: list[str] = []


class Foreign:
    """A scheduler that is not a subclass but has the interface, by delegation."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._inner = Scheduler(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def add(self, request: Request) -> None:
        self._inner.add(request)

    def abort(self, request_ids: Any) -> list[EngineCoreOutput]:
        return self._inner.abort(request_ids)

    def schedule(self) -> SchedulerOutput:
        return self._inner.schedule()

    def update(self, out: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        return self._inner.update(out, result)

    def has_unfinished(self) -> bool:
        return self._inner.has_unfinished()


def test_in_its_middle_a_run_is_taken_over_only_by_who_can(busy: TraceReader, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="sets up additional state"):
        fork(busy, tmp_path / "fork.itrace", at=5, scheduler_cls=HasItsOwnInit)
    with pytest.raises(TraceError, match="not a subclass of engine.core.scheduler:Scheduler"):
        fork(busy, tmp_path / "fork.itrace", at=5, scheduler_cls=Foreign)
    for cls in (HasItsOwnInit, Foreign):
        result, b = forked(busy, tmp_path, scheduler_cls=cls)
        assert result.failure is None and result.scheduler_cls == class_path(cls)
        assert first_difference(busy, b) == ""


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("no_such_module:X", "cannot be imported: ModuleNotFoundError"),
        ("engine.core.scheduler:Sheduler", "module 'engine.core.scheduler' has no attribute 'Sheduler'"),
        ("engine.core.scheduler", "written as module:Class"),
        ("engine.core.scheduler:RUNNING", "is not a class"),
        ("engine.core.request:Request", "lacks add, abort, schedule, update, has_unfinished"),
    ],
)
def test_a_class_that_is_none_is_refused_in_words(spec: str, complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        load_class(spec)


def test_a_file_cannot_make_us_import_a_module(tmp_path: Path) -> None:
    a = TraceReader(random_run(tmp_path / "run.itrace", 2).path)
    a.header["scheduler_cls"] = "antigravity:Scheduler"
    with pytest.raises(TraceError, match="which is not imported because a file names it"):
        fork(a, tmp_path / "fork.itrace")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ShortestFirst", "PrefillFirst", "DecodeFirst"])
@pytest.mark.parametrize("at", [0, 10])
def test_the_examples_keep_every_rule_and_decide_otherwise(
    tmp_path: Path, recordings: list[TraceReader], name: str, at: int
) -> None:
    num_different = 0
    for a in recordings[:12]:
        result, b = forked(a, tmp_path, at=at, scheduler_cls=f"app.debugger.example_schedulers:{name}")
        assert result.failure is None and b.problems == [], (a.path, result.failure)
        num_different += diff(a, b).first is not None
    assert num_different > 2


def test_max_num_seqs_may_sink_beneath_those_who_run() -> None:
    scheduler = Scheduler(SchedulerConfig(8, 4, 100), CacheConfig(40, 4))
    for name in "abc":
        scheduler.add(Request(name, [1, 2], SamplingParams(max_tokens=3)))
    scheduler.schedule()
    scheduler.config = SchedulerConfig(8, 2, 100)
    assert find_problems(scheduler) == ["the batch has 3 requests, max_num_seqs is 2"]
    assert find_problems(scheduler, max_running=3) == []
