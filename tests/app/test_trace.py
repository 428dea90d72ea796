"""`prep trace`: every command on a recorded run, and every bad input."""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from app.cli import terminal
from app.cli.main import app
from app.cli.trace import _is_numbered
from app.debugger.catalogue import glance
from app.debugger.runs import open_run
from engine.core.request import Request
from engine.sampling_params import SamplingParams
from engine.trace.reader import TraceReader
from engine.trace.writer import TraceWriter
from tests.trace.trace_workloads import header, make_scheduler, random_run, sample
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "run.itrace"
    for seed in range(100):
        random_run(path, seed, num_requests=30)
        reader = TraceReader(path)
        if all(len(reader.events(kind)) > 2 for kind in ("preempt", "abort", "hit", "evict")):
            return path
    raise AssertionError("no seed meets all of it")


def prep(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["trace", *map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_info_counts_what_happened(file: Path) -> None:
    reader = TraceReader(file)
    summary = json.loads(prep("info", file, "--json").stdout)
    assert summary["steps"] == reader.num_steps and summary["complete"]
    assert summary["preemptions"] == len(reader.events("preempt"))
    assert summary["evictions"] == len(reader.events("evict"))
    assert summary["counters"].get("num_evictions", 0) == summary["evictions"]
    assert summary["hits"] == len(reader.events("hit"))
    assert summary["output_tokens"] == sum(len(request.tokens) for request in reader.requests)
    assert summary["duration_s"] >= summary["step_time_s"] * 0.99 > 0
    assert [request["request"] for request in summary["requests"]] == [r.request_id for r in reader.requests]
    for request in summary["requests"]:
        if request["ttft_s"] is not None:
            assert 0 <= request["queued_s"] <= request["ttft_s"] <= request["latency_s"]


def test_info_shows_a_table_and_the_next_command(file: Path) -> None:
    result = prep("info", file)
    reader = TraceReader(file)
    for word in ("preemptions", "evictions", "prefix hits", reader.requests[0].request_id, "TTFT"):
        assert word in result.stdout
    assert "prep trace why" in result.stderr


def test_a_pipe_and_a_narrow_terminal_have_every_id_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = make_scheduler()
    name = "chatcmpl-0123456789abcdef-0123456789abcdef"
    with TraceWriter(tmp_path / "ids.itrace", header(), scheduler) as tracer:
        request = Request(name, list(range(9)), SamplingParams(max_tokens=3), 0)
        scheduler.add(request)
        tracer.add(request)
        out = scheduler.schedule()
        result = sample(scheduler, out, random.Random(0))
        tracer.step(out, result, scheduler.update(out, result), 0.0)
    monkeypatch.delenv("COLUMNS", raising=False)
    piped = prep("info", tmp_path / "ids.itrace").stdout
    [row] = [line for line in piped.splitlines() if line.strip().startswith(name)]
    assert row.rstrip().endswith("unfinished")
    monkeypatch.setenv("COLUMNS", "80")
    narrow = prep("info", tmp_path / "ids.itrace").stdout
    assert name not in narrow and "…" not in narrow
    column = "".join(line.split()[0] for line in narrow.split("─\n")[-1].splitlines() if line[1:2].strip())
    assert name in column, "folded, not cut"


def test_the_fewest_free_blocks_are_a_fact_and_not_a_bound(file: Path) -> None:
    reader = TraceReader(file)
    fewest = min(reader.series.free_blocks)
    assert f"{fewest} block{'s' * (fewest != 1)} free" in prep("info", file).stdout
    glanced = glance(open_run("memory-pressure"))
    assert glanced.min_free_blocks == 0 and "at least" not in glanced.in_words
    assert f"fewest free blocks 0 of {glanced.num_blocks}" in glanced.in_words


def test_why_names_the_reason_its_figures_and_the_place_in_the_queue(file: Path) -> None:
    reader = TraceReader(file)
    step = next(i for i in range(reader.num_steps) if len(reader.state_at(i).waiting) > 2)
    name = reader.state_at(step).waiting[2]
    answer = json.loads(prep("why", file, name, "--step", step, "--json").stdout)
    assert answer["answer"] == "not_scheduled" and answer["reason"] and answer["position"] == 3
    text = prep("why", file, name, "--step", step).stdout
    assert answer["reason"] in text and answer["sentence"] in text.replace("\n", " ")


def test_why_without_a_step_tells_a_whole_life(file: Path) -> None:
    reader = TraceReader(file)
    name = reader.events("preempt")[0].request_id
    spans = json.loads(prep("why", file, name, "--json").stdout)
    request = reader.find(str(name))
    assert spans[0]["first"] == request.added and spans[-1]["last"] == request.ended
    assert all(one["last"] + 1 == other["first"] for one, other in zip(spans, spans[1:], strict=False))
    assert "no_blocks" in prep("why", file, name).stdout or "lower_priority" in prep("why", file, name).stdout


def test_verify_agrees_with_a_sound_trace_and_names_the_first_bad_step_of_another(
    file: Path, tmp_path: Path
) -> None:
    assert "all states match the engine's checks" in prep("verify", file).stdout
    lines = gzip.decompress(file.read_bytes()).splitlines()
    records = [json.loads(line) for line in lines]
    index = next(i for i, record in enumerate(records) if record["t"] == "step" and record["i"] == 20)
    records[index]["free"] += 1
    bad = tmp_path / "bad.itrace"
    bad.write_bytes(gzip.compress(b"".join(json.dumps(record).encode() + b"\n" for record in records)))
    assert "first bad step" in prep("verify", bad, code=1).stdout
    report = json.loads(prep("verify", bad, "--json", code=1).stdout)
    assert not report["ok"] and report["first_bad_step"] <= 20
    assert json.loads(prep("verify", file, "--json").stdout)["ok"]


def test_a_trace_without_its_end_verifies_with_a_warning_and_a_cut_one_does_not(
    file: Path, tmp_path: Path
) -> None:
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    killed = tmp_path / "killed.itrace"
    killed.write_bytes(gzip.compress(b"".join(lines[:-1])))
    assert "no end record" in prep("verify", killed).stderr
    cut = tmp_path / "cut.itrace"
    cut.write_bytes(file.read_bytes()[:-200])
    assert "truncated" in prep("verify", cut, code=1).stdout


def test_export_writes_json_that_perfetto_reads(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    assert "ui.perfetto.dev" in prep("export", file, "--perfetto", out).stderr
    assert json.loads(out.read_text())["traceEvents"]
    assert json.loads(prep("export", file, "--perfetto", out, "--json").stdout)["events"] > 100


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["info", "NONE"], "cannot read"),
        (["why", "FILE", "r-none", "--step", "3"], "has no request 'r-none'"),
        (["why", "FILE", "r0", "--step", "999999"], "has no step 999999: it holds 0 to"),
        (["export", "FILE"], "prep trace export needs an output: --perfetto OUT"),
        (["why"], "prep trace why needs FILE: a trace (*.itrace)"),
        (["why", "FILE"], "prep trace why needs REQ: request id"),
        (["export"], "prep trace export needs FILE: a trace (*.itrace)"),
        (["record", "-o", "FILE", "version"], "exists"),
        (["record", "-o", "nowhere/run.itrace", "version"], "there is no folder"),
        (["record", "-o", "NONE", "no-such-program"], "cannot run no-such-program"),
    ],
)
def test_bad_input_ends_in_one_clear_line(
    file: Path, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    places = {"FILE": str(file), "NONE": str(tmp_path / "none.itrace")}
    result = prep(*(places.get(word, word) for word in arguments), code=2)
    assert complaint in result.stderr.replace("\n", " ") and "Traceback" not in result.stderr


def test_export_takes_the_output_as_the_other_commands_do(file: Path, tmp_path: Path) -> None:
    prep("export", file, "-o", tmp_path / "run.json")
    assert (tmp_path / "run.json").exists()


def test_a_trace_without_a_readable_step_is_an_error(file: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.itrace"
    short.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()).partition(b"\n")[0] + b"\n"))
    assert "no step of" in prep("info", short, code=2).stderr
    short.write_bytes(short.read_bytes()[:60])
    assert "truncated inside the header" in prep("info", short, code=2).stderr


def test_an_unknown_request_is_answered_with_the_known_ones(file: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.itrace"
    random_run(few, 1, num_requests=3)
    told = prep("why", few, "F", code=2).stderr
    assert all(request.request_id in told for request in TraceReader(few).requests)
    assert "prep trace info" in prep("why", file, "zzz", code=2).stderr


def test_only_traces_that_the_engine_wrote_are_recorded(tmp_path: Path) -> None:
    first = tmp_path / "mine.itrace"
    for name, content in [
        ("mine-2.itrace", b"x"),
        ("2.itrace", b"x"),
        ("other-2.itrace", b"x"),
        ("mine.itrace", b""),
    ]:
        (tmp_path / name).write_bytes(content)
    written = [path.name for path in tmp_path.iterdir() if _is_numbered(path, first)]
    assert written == ["mine-2.itrace"]


def test_a_command_inside_record_leaves_the_hint_to_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREP_HINTS", "0")
    terminal.next_command("prep chat shop")
    assert not capsys.readouterr().err


def test_an_export_into_nowhere_says_so(file: Path, tmp_path: Path) -> None:
    assert "No such file" in prep("export", file, "--perfetto", tmp_path / "no" / "x.json", code=3).stderr


STAND_IN = """
import os, sys
from pathlib import Path
from tests.trace.trace_workloads import header, make_scheduler, random_run, sample
from engine.trace.files import unused_path
for seed in range(int(sys.argv[1])):
    random_run(unused_path(os.environ["PREP_TRACE"]), seed)
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize(("engines", "code"), [(1, 0), (2, 5)])
def test_record_traces_every_engine_of_a_command_and_passes_its_exit_code_on(
    tmp_path: Path, engines: int, code: int
) -> None:
    out = tmp_path / "run.itrace"
    command = [sys.executable, "-m", "app.cli.main", "trace", "record", "-o", str(out)]
    done = subprocess.run(
        [*command, "python", "-c", STAND_IN, str(engines), str(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == code, done.stderr
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["run-2.itrace", "run.itrace"][2 - engines :]
    assert done.stderr.count("recorded") == engines and "prep trace info" in done.stderr
    assert all(TraceReader(tmp_path / name).is_complete for name in files)


@pytest.mark.parametrize("num_bytes", [0, 3000])
def test_record_says_that_a_full_disk_cut_the_trace_off(tmp_path: Path, num_bytes: int) -> None:
    """A limit on the size of files fails as a full disk does; 0: not even the header fits."""
    out = tmp_path / "run.itrace"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "app.cli.main", "trace", "record", "-o", str(out)),
            "python",
            "-c",
            STAND_IN,
            "1",
            "0",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "500"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes)),
    )
    assert done.returncode == 3 and "File too large" in done.stderr, done.stderr
    assert "started no engine" not in done.stderr and "recorded" not in done.stderr
    assert "continues without a trace of later steps" in done.stderr and "is readable" not in done.stderr
    if num_bytes:
        assert "is cut off" in done.stderr and not TraceReader(out).is_complete
    else:
        assert "no trace was written" in done.stderr and not out.exists()


def test_record_ends_its_program_when_it_is_terminated(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, time; from pathlib import Path; here = Path(sys.argv[1]); "
        "signal.signal(signal.SIGTERM, lambda *_: (here.joinpath('ended').touch(), sys.exit(0))); "
        "here.joinpath('begun').write_text(str(os.getpid())); time.sleep(60)"
    )
    command = [sys.executable, "-m", "app.cli.main", "trace", "record", "-o", str(tmp_path / "run.itrace")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    recording = subprocess.Popen(
        [*command, "python", "-c", program, str(tmp_path)], cwd=ROOT, env=environment
    )
    try:
        wait_until((tmp_path / "begun").exists)
        recording.send_signal(signal.SIGTERM)
        recording.wait(30)
    finally:
        recording.kill()
    assert (tmp_path / "ended").exists(), "the program could close its trace"


def test_record_says_so_when_no_engine_was_started(tmp_path: Path) -> None:
    result = prep("record", "-o", tmp_path / "run.itrace", "version", code=1)
    assert "started no engine" in result.stderr and not (tmp_path / "run.itrace").exists()
