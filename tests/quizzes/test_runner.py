"""The worker: warm, limited, killable; what it cannot do it says, and the next run works."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quizzes.experiments import registry, results_cache
from quizzes.experiments import runner as running
from quizzes.experiments.registry import BadArguments, Inconclusive, NeedsHardware, UnknownExperiment
from quizzes.experiments.runner import OverMemory, OverTime, RunFailed, Runner

NAME = "batching.static_vs_continuous"

TROUBLE = '''
from quizzes.experiments import Context, Inconclusive, NeedsHardware, Result, experiment

@experiment(seconds=1.5, megabytes=400)
def trouble(ctx: Context, what: str = "nothing") -> Result:
    """Misbehave in a chosen way.

    Returns:
        value
    """
    if what == "spin":
        while True:
            pass
    if what == "hoard":
        import threading
        hoard = b"x" * (400 << 20)
        threading.Event().wait()
    if what == "raise":
        raise ZeroDivisionError("as asked")
    if what == "exit":
        import os
        os._exit(7)
    if what == "print":
        print("{} not an answer")
    if what == "noise":
        raise Inconclusive("the interval holds both answers")
    if what == "gpu":
        raise NeedsHardware("needs a GPU")
    if what == "field":
        return Result(valve=1.0)
    return Result(value=float("nan") if what == "nan" else 1.0)
'''


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A runner with a misbehaving experiment, in a topic that exists during these tests only."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PREP_HOME", str(tmp_path_factory.mktemp("home")))
    folder = tmp_path_factory.mktemp("extra") / "quizzes_extra"
    topic = folder / "trials"
    topic.mkdir(parents=True)
    (topic / "__init__.py").write_text("")
    (topic / "trouble.py").write_text(textwrap.dedent(TROUBLE))
    patch.setenv("PREP_EXPERIMENTS", str(folder))
    with Runner() as runner:
        yield runner
    patch.undo()


def test_a_result_is_the_functions_fields(runner: Runner) -> None:
    outcome = runner.run(NAME, {"slots": 2, "lens": [3, 1, 2]})
    assert (outcome.result["static_steps"], outcome.result["continuous_steps"]) == (5, 3)
    assert not outcome.cached and outcome.args == {"slots": 2, "lens": [3, 1, 2]}


def test_the_second_time_it_comes_from_the_cache_and_fresh_runs_it_again(runner: Runner) -> None:
    first = runner.run(NAME, {"slots": 3})
    again = runner.run(NAME, {"slots": 3})
    fresh = runner.run(NAME, {"slots": 3}, fresh=True)
    assert again.cached and not fresh.cached
    assert first.result == again.result == fresh.result


def test_an_edit_of_the_engine_forgets_results(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    runner.run(NAME, {"slots": 5})
    monkeypatch.setattr(results_cache, "source_revision", lambda: "edited")
    assert not runner.run(NAME, {"slots": 5}).cached


def test_a_damaged_result_is_named_and_computed_again(
    runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    runner.run(NAME, {"slots": 6})
    for path in (Path(os.environ["PREP_HOME"]) / "cache" / "results").glob("*/*.json"):
        path.write_text(path.read_text()[:20])
    assert not runner.run(NAME, {"slots": 6}).cached
    assert "is damaged" in caplog.text and ".json" in caplog.text


@pytest.mark.parametrize(
    ("name", "args", "error", "words"),
    [
        (
            "batching.static_vs_continous",
            {},
            UnknownExperiment,
            "did you mean 'batching.static_vs_continuous'",
        ),
        (NAME, {"slotz": 2}, BadArguments, "did you mean 'slots'"),
        (NAME, {"slots": 0}, BadArguments, "slots: must be at least 1, got 0"),
        (NAME, {"slots": "two"}, BadArguments, "slots: must be a whole number, got 'two'"),
        (NAME, {"lens": [5, -1]}, BadArguments, r"lens\[1\]"),
    ],
)
def test_what_cannot_run_is_refused_before_a_worker_sees_it(
    runner: Runner, name: str, args: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        runner.run(name, args)


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("spin", OverTime, "limit of 1.5 s"),
        ("hoard", OverMemory, "limit is 400 MiB"),
        ("raise", RunFailed, "ZeroDivisionError: as asked"),
        ("exit", RunFailed, "ended with exit code 7 without a result"),
        ("nan", RunFailed, "not a plain value"),
        ("field", RunFailed, "returned valve; its docstring declares value"),
        ("noise", Inconclusive, "both answers"),
        ("gpu", NeedsHardware, "needs a GPU"),
    ],
)
def test_a_run_that_gives_no_result_says_why_and_the_next_one_works(
    runner: Runner, what: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        runner.run("trials.trouble", {"what": what})
    assert runner.run("trials.trouble", {"what": "nothing"}, fresh=True).result == {"value": 1.0}


class Spent:
    """Time used by a worker, by the clock and of the processor, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.processor, self.mebibytes = 1000.0, 50.0, 100
        monkeypatch.setattr(running.time, "monotonic", lambda: self.clock)
        monkeypatch.setattr(running, "_processor_seconds", lambda pid: self.processor)
        monkeypatch.setattr(running, "_megabytes", lambda pid: self.mebibytes)

    def passes(self, clock: float, processor: float) -> None:
        self.clock += clock
        self.processor += processor


def test_a_limit_is_processor_time_and_a_hanging_run_ends_nevertheless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent = Spent(monkeypatch)
    limit = running._Limit("x", 10.0, 400)
    spent.passes(60, 30)  # imports are not the run's
    limit.check(1)
    limit.begin(1)
    spent.passes(50, 19)  # a machine that is busy with other things
    limit.check(1)
    spent.passes(1, 2)  # 21 s on two cores
    with pytest.raises(OverTime, match="limit of 10 s"):
        limit.check(1)
    limit = running._Limit("x", 10.0, 400)
    limit.begin(1)
    spent.passes(61, 0)  # it waits for something that does not come
    with pytest.raises(OverTime, match="limit of 10 s"):
        limit.check(1)


def test_a_worker_that_does_not_start_and_one_that_grows_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = Spent(monkeypatch)
    limit = running._Limit("x", 10.0, 400)
    spent.passes(running.START_SECONDS + 1, 0)
    with pytest.raises(OverTime, match="did not start"):
        limit.check(1)
    limit.begin(1)
    limit.check(1)
    spent.mebibytes = 401
    with pytest.raises(OverMemory, match="its limit is 400 MiB"):
        limit.check(1)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("inconclusive", Inconclusive),
        ("hardware", NeedsHardware),
        ("arguments", BadArguments),
        ("unknown", UnknownExperiment),
        ("memory", OverMemory),
        ("failed", RunFailed),
    ],
)
def test_what_the_worker_tells_is_raised_here(error: str, kind: type[Exception]) -> None:
    told = running._error("x", {"ok": False, "error": error, "message": "why", "traceback": "T: why"})
    assert type(told) is kind and "why" in str(told)


# ---- the cache of results ---------------------------------------------------------------------------------------


def test_a_result_is_found_only_for_the_same_experiment_arguments_seed_and_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exact = registry.get(NAME)
    key = results_cache.key_of(exact, {"slots": 2, "lens": [1]}, 0)
    assert key == results_cache.key_of(exact, {"lens": [1], "slots": 2}, 0)
    others = {
        results_cache.key_of(exact, {"slots": 3, "lens": [1]}, 0),
        results_cache.key_of(exact, {"slots": 2, "lens": [1]}, 1),
        results_cache.key_of(replace(exact, name="batching.other"), {"slots": 2, "lens": [1]}, 0),
        results_cache.key_of(replace(exact, version=exact.version + 1), {"slots": 2, "lens": [1]}, 0),
    }
    monkeypatch.setattr(results_cache, "source_revision", lambda: "edited")
    others.add(results_cache.key_of(exact, {"slots": 2, "lens": [1]}, 0))
    assert len(others | {key}) == 6


def test_only_a_measured_result_belongs_to_a_machine_and_to_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    exact = registry.get(NAME)
    measured = replace(exact, determinism="statistical")
    here = [results_cache.key_of(each, {}, 0) for each in (exact, measured)]
    for each, key in zip((exact, measured), here, strict=True):
        results_cache.write(each, key, {"value": 1})
        assert results_cache.read(each, key) == {"value": 1}
    now = results_cache.time.time()
    monkeypatch.setattr(results_cache.time, "time", lambda: now + 2 * 86_400)
    assert [results_cache.read(each, key) for each, key in zip((exact, measured), here, strict=True)] == [
        {"value": 1},
        None,
    ]
    monkeypatch.setattr(results_cache.platform, "node", lambda: "another machine")
    assert results_cache.key_of(exact, {}, 0) == here[0]
    assert results_cache.key_of(measured, {}, 0) != here[1]


def test_a_result_of_another_experiment_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREP_HOME", str(tmp_path))
    exact = registry.get(NAME)
    results_cache.write(replace(exact, name="batching.other"), "abc", {"value": 1})
    assert results_cache.read(exact, "abc") is None


# ---- the worker -------------------------------------------------------------------------------------------------


def test_what_an_experiment_prints_is_no_answer(runner: Runner) -> None:
    assert runner.run("trials.trouble", {"what": "print"}).result == {"value": 1.0}


def test_a_worker_that_was_killed_is_replaced(runner: Runner) -> None:
    runner.run(NAME, {"slots": 1}, fresh=True)
    assert runner._worker is not None
    os.killpg(runner._worker.pid, signal.SIGKILL)
    assert runner.run(NAME, {"slots": 1}, fresh=True).result["static_steps"] == 201


def test_closing_leaves_no_process(tmp_path: Path) -> None:
    import psutil

    with Runner(cache=False) as runner:
        runner.warm(NAME)
        assert runner._worker is not None
        pid = runner._worker.pid
        runner.run(NAME)
    assert not psutil.pid_exists(pid)


def test_warming_what_does_not_exist_is_told_by_the_run(runner: Runner) -> None:
    runner.warm("batching.no_such_thing")
    with pytest.raises(UnknownExperiment):
        runner.run("batching.no_such_thing")
    assert runner.run(NAME, {"slots": 1, "lens": [4, 3]}).result["continuous_steps"] == 7


def test_a_trace_of_the_run_can_be_opened(runner: Runner, tmp_path: Path) -> None:
    from engine.trace.reader import TraceReader

    path = tmp_path / "run.itrace"
    outcome = runner.run(NAME, {"slots": 2}, trace=path)
    reader = TraceReader(path)
    assert reader.num_steps == outcome.result["continuous_steps"] and not reader.problems


def test_every_experiment_has_defaults_a_doc_and_units_and_imports_no_torch() -> None:
    import subprocess
    import sys

    program = (
        "import sys\n"
        "from quizzes.experiments import registry\n"
        "for name in registry.names():\n"
        "    e = registry.get(name)\n"
        "    e.check({})\n"
        "    assert e.doc and e.title.endswith('.'), name\n"
        "    assert e.result_units, f'{name}: its docstring declares no result'\n"
        "assert 'torch' not in sys.modules, 'an experiment imports torch at its top'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=results_cache.ROOT)


def test_the_whole_catalogue_is_covered() -> None:
    covered = {row for name in registry.names() for row in registry.get(name).catalogue}
    wanted = {f"E{number:02d}" for number in range(1, 67)}
    assert covered >= wanted, sorted(wanted - covered)
    assert json.dumps(sorted(covered - wanted)) == "[]"
