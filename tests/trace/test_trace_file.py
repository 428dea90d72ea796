"""A trace as a file: what a crash, a full disk, a cut, a newer version or another file leave to read."""

from __future__ import annotations

import gzip
import json
import logging
import random
import signal
import subprocess
import sys
import textwrap
from fractions import Fraction
from pathlib import Path

import pytest

from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput
from engine.core.scheduler import Scheduler
from engine.sampling_params import SamplingParams
from engine.trace.files import unused_path
from engine.trace.format import FLUSH_EVERY, TraceError
from engine.trace.header import code_revision
from engine.trace.reader import TraceReader
from engine.trace.writer import TraceWriter
from tests.trace.trace_workloads import header, make_scheduler, random_run, sample

ROOT = Path(__file__).parents[2]


def endless_steps(scheduler: Scheduler, tracer: TraceWriter, steps: int) -> None:
    rng = random.Random(0)
    first = scheduler.stats.step + 1
    for number in range(first, first + steps):
        if len(scheduler.requests) < 4:
            request = Request(f"r{number}", [number % 50] * 9, SamplingParams(max_tokens=30), number)
            scheduler.add(request)
            tracer.add(request)
        out = scheduler.schedule()
        result = sample(scheduler, out, rng)
        tracer.step(out, result, scheduler.update(out, result), 0.001)


CHILD = """
    import sys
    from tests.trace.test_trace_file import endless_steps
    from tests.trace.trace_workloads import header, make_scheduler
    from engine.trace.writer import TraceWriter

    scheduler = make_scheduler()
    tracer = TraceWriter(sys.argv[1], header(), scheduler)
"""


def child(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD) + textwrap.dedent(code), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_engine_that_is_killed_leaves_a_trace_that_reads_up_to_the_last_flush(tmp_path: Path) -> None:
    path = tmp_path / "run.itrace"
    process = child(
        """
        endless_steps(scheduler, tracer, 700)
        print("ready", flush=True)
        while True:
            endless_steps(scheduler, tracer, 1)
        """,
        str(path),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    reader = TraceReader(path)
    assert reader.num_steps >= 2 * FLUSH_EVERY
    assert not reader.is_complete
    if reader.problems:  # the signal came within a flush, of which a part is in the file
        assert ["truncated" in problem.message for problem in reader.problems] == [True]
        return
    assert "no end record" in reader.warnings[0]
    assert len(gzip.decompress(path.read_bytes())) > 0, "what was flushed is a complete gzip file"


def test_a_process_that_forgets_to_close_or_ends_with_an_exception_still_completes_its_trace(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.itrace"
    process = child("endless_steps(scheduler, tracer, 10)\nraise RuntimeError('boom')", str(path))
    process.communicate()
    reader = TraceReader(path)
    assert reader.is_complete and reader.num_steps == 10 and not reader.problems


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX resource limits")
def test_a_full_disk_stops_the_trace_with_one_warning_and_not_the_engine(tmp_path: Path) -> None:
    path = tmp_path / "run.itrace"
    random_run(path, seed=0)  # an old trace in the same place leaves nothing behind
    process = child(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
        endless_steps(scheduler, tracer, 5000)
        assert not tracer.active and scheduler.kv.pool.on_event is None
        endless_steps(scheduler, tracer, 10)
        tracer.close()
        print(scheduler.stats.step)
        """,
        str(path),
    )
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert out == "5009\n", "the engine went on"
    assert errors.count("stopped") == 1 and "Free some space" in errors and str(path) in errors
    reader = TraceReader(path)
    assert reader.num_steps >= FLUSH_EVERY and reader.num_steps % FLUSH_EVERY == 0
    assert reader.problems == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_is_full_from_the_start_is_a_warning_too(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = make_scheduler()
    with caplog.at_level(logging.WARNING):
        tracer = TraceWriter("/dev/full", header(), scheduler)
    assert len(caplog.records) == 1 and not tracer.active
    endless_steps(scheduler, tracer, 20)
    tracer.close()
    assert len(caplog.records) == 1


def test_a_folder_that_does_not_exist_is_refused_before_the_engine_starts(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=r"cannot write a trace to .*nowhere.*No such file.*folder that exists"
    ):
        TraceWriter(tmp_path / "nowhere" / "run.itrace", header(), make_scheduler())


def test_a_file_that_is_no_trace_is_never_overwritten_and_an_old_trace_is(tmp_path: Path) -> None:
    precious = tmp_path / "model.safetensors"
    for content in (b"weights", gzip.compress(b"an archive")):
        precious.write_bytes(content)
        with pytest.raises(TraceError, match="exists and is not a trace, so it was not overwritten"):
            TraceWriter(precious, header(), make_scheduler())
        assert precious.read_bytes() == content
    path = tmp_path / "run.itrace"
    for steps in (300, 5):
        with TraceWriter(path, header(), scheduler := make_scheduler()) as tracer:
            endless_steps(scheduler, tracer, steps)
    assert TraceReader(path).num_steps == 5 and TraceReader(path).is_complete


def test_two_engines_cannot_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "run.itrace"
    with TraceWriter(path, header(), scheduler := make_scheduler()) as tracer:
        endless_steps(scheduler, tracer, 5)
        with pytest.raises(TraceError, match="another engine is writing it"):
            TraceWriter(path, header(), make_scheduler())
        endless_steps(scheduler, tracer, 5)
    assert TraceReader(path).num_steps == 10 and not TraceReader(path).problems


def test_tracing_refuses_a_scheduler_that_has_already_worked(tmp_path: Path) -> None:
    scheduler = make_scheduler()
    scheduler.add(Request("r0", [1], SamplingParams()))
    with pytest.raises(TraceError, match="fresh scheduler"):
        TraceWriter(tmp_path / "run.itrace", header(), scheduler)


def test_a_trace_that_is_off_leaves_no_callback_behind(tmp_path: Path) -> None:
    scheduler = make_scheduler()
    assert scheduler.kv.pool.on_event is None
    tracer = TraceWriter(tmp_path / "run.itrace", header(), scheduler)
    endless_steps(scheduler, tracer, 3)
    tracer.close()
    tracer.close()
    assert scheduler.kv.pool.on_event is None
    endless_steps(scheduler, tracer, 3)
    assert TraceReader(tmp_path / "run.itrace").num_steps == 3


def test_a_step_that_nobody_recorded_ends_the_trace_instead_of_making_it_wrong(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make_scheduler()
    tracer = TraceWriter(tmp_path / "run.itrace", header(), scheduler)
    endless_steps(scheduler, tracer, 3)
    out = scheduler.schedule()
    scheduler.update(out, sample(scheduler, out, random.Random(0)))
    endless_steps(scheduler, tracer, 3)
    assert not tracer.active and "was not recorded" in caplog.text


def test_a_dead_engine_ends_its_trace_with_the_error(tmp_path: Path) -> None:
    scheduler = make_scheduler()
    tracer = TraceWriter(tmp_path / "run.itrace", header(), scheduler)
    endless_steps(scheduler, tracer, 5)
    scheduler.schedule()
    tracer.error(RuntimeError("out of memory"))
    tracer.close()
    reader = TraceReader(tmp_path / "run.itrace")
    assert reader.num_steps == 5 and reader.problems == []
    assert reader.warnings == ["the engine raised RuntimeError: out of memory"]


def test_an_interrupted_step_that_drops_all_requests_lets_the_trace_go_on(tmp_path: Path) -> None:
    scheduler = make_scheduler()
    tracer = TraceWriter(tmp_path / "run.itrace", header(), scheduler)
    endless_steps(scheduler, tracer, 5)
    scheduler.schedule()
    tracer.abort([output.request_id for output in scheduler.abort(list(scheduler.requests))])
    tracer.error(KeyboardInterrupt())
    endless_steps(scheduler, tracer, 80)
    tracer.close()
    reader = TraceReader(tmp_path / "run.itrace")
    assert reader.problems == [] and reader.num_steps == 86 and reader.is_complete
    assert reader.step(5).rows == [] and reader.state_at(5).running == []


# ---------------------------------------------------------------------- what can be wrong with a file


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9, 0.999])
def test_a_file_cut_in_the_middle_is_read_to_its_last_whole_record(tmp_path: Path, share: float) -> None:
    path = tmp_path / "run.itrace"
    scheduler = make_scheduler()
    tracer = TraceWriter(path, header(), scheduler)
    endless_steps(scheduler, tracer, 600)
    tracer.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    reader = TraceReader(path)
    assert any("truncated; read to the last whole record" in text for text in reader.warnings)
    assert reader.num_steps > 600 * share * 0.4
    reader.state_at(reader.num_steps - 1)
    assert [problem.step for problem in reader.problems] == [reader.num_steps]


def test_a_newer_version_is_refused_by_name_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "run.itrace"
    path.write_bytes(gzip.compress(json.dumps({"t": "hdr", "v": 7, "novelty": 1}).encode() + b"\n"))
    with pytest.raises(TraceError, match="trace format 7, and this prep reads up to 1: update prep"):
        TraceReader(path)


OTHER_FILES = {
    "empty": (b"", "is empty"),
    "not gzip": (b"hello", "does not begin like a gzip file"),
    "no line": (gzip.compress(b""), "first line is not a trace header"),
    "text": (gzip.compress(b"hello\n"), "first line is not a trace header"),
    "no header": (gzip.compress(b'{"t":"step"}\n'), "first line is not a trace header"),
    "a list": (gzip.compress(b"[1]\n"), "first line is not a trace header"),
    "no blocks": (gzip.compress(b'{"t":"hdr","v":1}\n'), "first line is not a trace header"),
    "blocks of text": (
        gzip.compress(b'{"t":"hdr","v":1,"blocks":"x","block_size":4}\n'),
        "first line is not a trace header",
    ),
    "cut gzip": (gzip.compress(b"hello\n")[:12], "truncated inside the header"),
}


@pytest.mark.parametrize(("content", "complaint"), OTHER_FILES.values(), ids=OTHER_FILES.keys())
def test_another_file_is_not_a_trace_and_says_so(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "other.itrace"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=complaint) as error:
        TraceReader(path)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read .*it does not exist"):
        TraceReader(tmp_path / "none.itrace")
    with pytest.raises(TraceError, match="cannot read"):
        TraceReader(tmp_path)


def test_a_step_or_request_that_does_not_exist_is_named_with_what_there_is(tmp_path: Path) -> None:
    reader = TraceReader(random_run(tmp_path / "run.itrace", seed=1).path)
    for step in (-1, reader.num_steps):
        with pytest.raises(TraceError, match=f"no step {step}: it holds 0 to {reader.num_steps - 1}"):
            reader.state_at(step)
        with pytest.raises(TraceError, match=f"no step {step}"):
            reader.step(step)
    with pytest.raises(TraceError, match="has no request 'r00'; did you mean 'r0'"):
        reader.find("r00")
    with pytest.raises(TraceError, match="no event kind 'explode': add, admit"):
        reader.events("explode")


def test_a_trace_without_steps_can_be_read(tmp_path: Path) -> None:
    scheduler = make_scheduler()
    TraceWriter(tmp_path / "run.itrace", header(), scheduler).close()
    reader = TraceReader(tmp_path / "run.itrace")
    assert reader.num_steps == 0 and reader.duration_s == 0 and not reader.problems and not reader.warnings


def test_the_header_says_what_ran_and_where(tmp_path: Path) -> None:
    scheduler = make_scheduler(num_blocks=21, block_size=4)
    TraceWriter(tmp_path / "run.itrace", {"model": "m", "seed": 3, "extra": [1]}, scheduler).close()
    found = TraceReader(tmp_path / "run.itrace").header
    assert {"t", "v", "model", "config", "blocks", "block_size", "seed", "code_rev", "machine"} <= set(found)
    assert (found["model"], found["seed"], found["extra"]) == ("m", 3, [1])
    assert (found["v"], found["blocks"], found["block_size"]) == (1, 21, 4)
    assert "Python 3" in found["machine"]


def test_the_code_revision_is_a_commit_or_nothing() -> None:
    revision = code_revision()
    assert revision is None or len(revision.removesuffix("+")) >= 7


def test_a_second_engine_gets_a_file_of_its_own(tmp_path: Path) -> None:
    wanted = tmp_path / "run.itrace"
    assert unused_path(wanted) == wanted
    wanted.touch()
    assert unused_path(wanted).name == "run-2.itrace"
    (tmp_path / "run-2.itrace").touch()
    assert unused_path(wanted).name == "run-3.itrace"


@pytest.mark.parametrize("name", ["", "two words\n", 'say "hi"', "\0", "\ud800", "日本 🍣", "x" * 5000])
def test_any_name_of_a_request_survives_the_file(tmp_path: Path, name: str) -> None:
    scheduler = make_scheduler(num_blocks=400)
    with TraceWriter(tmp_path / "run.itrace", header(), scheduler) as tracer:
        for request_id in (name, "other"):
            request = Request(request_id, [1, 2], SamplingParams(max_tokens=500))
            scheduler.add(request)
            tracer.add(request)
        endless_steps(scheduler, tracer, 70)
    reader = TraceReader(tmp_path / "run.itrace")
    assert reader.problems == [] and reader.state_at(69).running[:2] == [name, "other"]


def test_figures_of_a_custom_scheduler_that_json_does_not_know_do_not_stop_anything(tmp_path: Path) -> None:
    class Odd(int):
        pass

    scheduler = make_scheduler(max_num_seqs=1)
    with TraceWriter(tmp_path / "run.itrace", header(), scheduler) as tracer:
        for number in range(2):
            request = Request(f"r{number}", [1], SamplingParams())
            scheduler.add(request)
            tracer.add(request)
        out = scheduler.schedule()
        out.not_scheduled[0].details = {"running": Odd(1), "share": Fraction(1, 2), "who": object()}
        result = sample(scheduler, out, random.Random(0))
        tracer.step(out, result, scheduler.update(out, result), 0.001)
    details = TraceReader(tmp_path / "run.itrace").reasons(0)[0].details
    assert details["running"] == 1 and details["share"] == 0.5 and "object" in str(details["who"])


def test_a_scheduler_without_a_block_pool_is_refused_by_name(tmp_path: Path) -> None:
    class Mine:
        requests: dict[str, Request] = {}

    with pytest.raises(TraceError, match="Mine cannot be traced: it has no kv.pool"):
        TraceWriter(tmp_path / "run.itrace", header(), Mine())


def test_a_step_without_work_is_recorded_too(tmp_path: Path) -> None:
    scheduler = make_scheduler()
    with TraceWriter(tmp_path / "run.itrace", header(), scheduler) as tracer:
        out = scheduler.schedule()
        tracer.step(out, ModelRunnerOutput(), scheduler.update(out, ModelRunnerOutput()), 0.0)
    assert TraceReader(tmp_path / "run.itrace").step(0).rows == []


def test_the_trace_modules_start_without_torch_or_numpy() -> None:
    code = (
        "import sys, engine.trace.reader, engine.trace.writer, engine.trace.why, "
        "app.trace_tools.perfetto; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
