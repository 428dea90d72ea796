"""Pages from a trace alone, the worker's tensors against the engine's own, and a worker that fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from app.debugger.kernel_walk.client import WORKER, WalkClient
from app.debugger.kernel_walk.question import NoModel, Question, make_question
from app.debugger.kernel_walk.sources import FORMS, places
from app.debugger.kernel_walk.table import (
    KVShape,
    Table,
    TablePage,
    last_step_with_table,
    read_table,
    resolve_dtype,
    ways,
)
from app.debugger.source_lines import ROOT
from engine.trace.format import TraceError
from engine.trace.reader import TraceReader
from tests.trace.trace_workloads import random_run

# ---------------------------------------------------------------------- the exact part


@pytest.mark.parametrize("seed", range(4))
def test_the_pages_are_the_engines_block_tables_after_every_step(tmp_path: Path, seed: int) -> None:
    run = random_run(tmp_path / "run.itrace", seed=seed, num_requests=14)
    reader = TraceReader(run.path)
    checked = 0
    for step, snapshot in enumerate(run.snapshots):
        for request_id in snapshot.running:
            table = read_table(reader, step, request_id)
            assert [page.block_id for page in table.pages] == snapshot.tables[request_id]
            assert sum(page.num_tokens for page in table.pages) == snapshot.num_computed[request_id]
            slots = len(table.pages) * reader.block_size
            assert table.wasted_slots == slots - snapshot.num_computed[request_id]
            for page in table.pages:
                assert page.is_null or snapshot.refs[page.block_id] == 1 + len(page.shared_with)
            checked += 1
    assert checked > 100


def test_a_request_without_blocks_says_why_and_where_it_has_some(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run.itrace", seed=7, num_requests=24)
    reader = TraceReader(run.path)
    reasons = set()
    for history in reader.requests:
        for step in range(reader.num_steps):
            try:
                read_table(reader, step, history.request_id)
            except TraceError as error:
                reasons.add(
                    next(word for word in ("arrives", "ended", "preempted", "waits") if word in str(error))
                )
                nearest = last_step_with_table(reader, step, history.request_id)
                if nearest is not None and reader.find(history.request_id, nearest) is reader.find(
                    history.request_id, step
                ):
                    read_table(reader, nearest, history.request_id)
    assert reasons == {"arrives", "ended", "waits", "preempted"}


def test_bytes_by_hand() -> None:
    pages = [TablePage(page, 10 + page, 16 * page, 16 if page < 2 else 5, (), False) for page in range(3)]
    table = Table("r", 0, 37, 16, pages, 36)
    shape = KVShape(num_layers=6, num_kv_heads=4, head_dim=32)
    assert shape.bytes_per_token("float32") == 2 * 4 * 32 * 4
    assert shape.bytes_per_token("int8_per_token_head") == 2 * 4 * (32 + 4)
    paged, contiguous, padded, gathered = ways(table, shape, "bfloat16", 37, 2048)
    assert table.wasted_slots == 11
    assert (paged.read, paged.held) == (37 * 512 + 3 * 4, 48 * 512)
    assert (contiguous.read, contiguous.held) == (37 * 512, 2048 * 512)
    assert padded.read == 2048 * 512
    assert (gathered.read, gathered.written) == (2 * 37 * 512 + 3 * 4, 37 * 512)
    assert resolve_dtype("auto", "bfloat16") == "bfloat16" and resolve_dtype("fp8_e4m3", "float32") == "fp8"


def test_every_idea_is_found_in_every_kernel_and_the_lines_say_so() -> None:
    for idea, lines in places().items():
        assert len(lines) == len(FORMS)
        for form, line in zip(FORMS, lines, strict=True):
            assert line is not None, f"{idea}: no line in {form}"
            assert line.text in (ROOT / line.path).read_text().splitlines()[line.line - 1]


def test_a_scheduler_without_a_model_has_no_scores_and_says_so(tmp_path: Path) -> None:
    run = random_run(tmp_path / "run.itrace", seed=1, num_requests=6)
    reader = TraceReader(run.path)
    step = next(step for step, snapshot in enumerate(run.snapshots) if snapshot.running)
    table = read_table(reader, step, run.snapshots[step].running[0])
    header = {**reader.header, "model": None}
    reader.header = header
    with pytest.raises(NoModel, match="names no model"):
        make_question(reader, table)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node: apt-get install nodejs")
def test_the_drawings_words_and_numbers(tmp_path: Path) -> None:
    modules = {"WALK": "kernel_walk/walk.js", "TREE": "capacity/tree.js"}
    for name, path in modules.items():
        shutil.copy(ROOT / "app" / "debugger" / path, tmp_path / f"{name}.mjs")
    done = subprocess.run(
        ["node", "--test", str(Path(__file__).with_name("kernel_walk.test.mjs"))],
        env={**os.environ, **{name: str(tmp_path / f"{name}.mjs") for name in modules}},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


# ---------------------------------------------------------------------- against the engine

ENGINES: dict[str, dict[str, Any]] = {
    "float32": {},
    "int8": {"kv_cache_dtype": "int8_per_token_head"},
    "fp8": {"kv_cache_dtype": "fp8"},
    "window": {
        "hf_overrides": {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": 9,
        }
    },
}


@pytest.mark.parametrize("kind", ENGINES)
def test_keys_values_and_output_are_the_engines_own(
    kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A live engine is stopped after some steps; the worker's cache must hold what its blocks hold."""
    torch = pytest.importorskip("torch")
    from app.debugger.kernel_walk.walker import Walker
    from tests.engine.harness import engine_factory, request, tiny_settings, write_tiny_llama

    path = tmp_path / "run.itrace"
    model = write_tiny_llama(tmp_path_factory.mktemp("tiny"))
    with engine_factory(
        **tiny_settings(model), num_gpu_blocks_override=60, trace=str(path), device="cpu"
    ) as make:
        engine = make(max_num_batched_tokens=16, max_num_seqs=4, **ENGINES[kind])
        for number in range(3):
            engine.add_request(
                request(str(number), [5, 6, 7, 8, 9, 10, 11, 12, *range(20, 30 + number)], max_tokens=12)
            )
        for _ in range(9):
            engine.step()
        engine.tracer.flush()
        reader = TraceReader(path)
        cache = engine.executor.worker.runner.kv_cache
        walker = Walker()
        step = reader.num_steps - 1
        tables = {name: read_table(reader, step, name) for name in reader.state_at(step).running}
        pages = [page for table in tables.values() for page in table.pages]
        assert len(tables) == 3 and any(
            page.is_null if kind == "window" else page.shared_with for page in pages
        )
        for table in tables.values():
            for layer, head in ((0, 0), (1, 3)):
                question = make_question(reader, table, layer=layer, head=head)
                answer = walker.answer(asdict(question), lambda text: None)
                assert answer["difference"] < 1e-5 * max(1.0, answer["largest"])
                assert sum(page["share"] for page in answer["pages"]) == pytest.approx(1, abs=1e-5)
                assert all(page["block_id"] == table.pages[page["page"]].block_id for page in answer["pages"])
                mine = walker._computed[1].cache
                for page in table.pages:
                    if page.is_null or not page.num_tokens:
                        continue
                    ours = mine.kv[page.block_id, layer, :, :, : page.num_tokens].float()
                    theirs = cache.kv[page.block_id, layer, :, :, : page.num_tokens].float()
                    tolerance = 1.0 if kind == "int8" else 1e-5 + 0.07 * (kind == "fp8") * theirs.abs().max()
                    assert (ours - theirs).abs().max() <= tolerance, f"block {page.block_id}"
        assert torch.is_inference_mode_enabled() is False


def test_a_pool_that_is_too_large_for_here_is_packed_and_gives_the_same(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from app.debugger.kernel_walk import walker
    from tests.engine.harness import tiny_settings, write_tiny_llama

    args = tiny_settings(write_tiny_llama(tmp_path_factory.mktemp("tiny")))
    question = Question(args, "", [5, 6, 7, 8, 9, 10], [40, 7], 5, None, layer=1)
    spread = walker.Walker().answer(asdict(question), lambda text: None)
    monkeypatch.setattr(walker, "MOST_CACHE_BYTES", 0)
    packed = walker.Walker().answer(asdict(question), lambda text: None)
    assert spread == packed and [page["block_id"] for page in packed["pages"]] == [40, 7]


def test_other_weights_than_the_runs_are_refused(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("torch")
    from app.debugger.kernel_walk.walker import Walker
    from engine.config import ConfigError
    from tests.engine.harness import tiny_settings, write_tiny_llama

    args = tiny_settings(write_tiny_llama(tmp_path_factory.mktemp("tiny")))
    question = {"args": args, "fingerprint": "0" * 32, "lora": None, "layer": 0, "head": 0}
    with pytest.raises(ConfigError, match="other weights or another dtype"):
        Walker().answer(question, lambda text: None)


# ---------------------------------------------------------------------- a worker that fails

QUESTION = Question({"model": "shop"}, "", [1, 2], [1], 1, None)


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


@pytest.fixture
def make_client() -> Any:
    clients: list[WalkClient] = []

    def make(code: str, limit_s: float = 60.0) -> WalkClient:
        clients.append(WalkClient(python(code), limit_s))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


Maker = Callable[..., WalkClient]
ECHO = "import sys, json\nfor line in sys.stdin:\n    n = json.loads(line)['id']\n"


def test_a_question_is_asked_once_and_answered_from_memory(make_client: Maker) -> None:
    client = make_client(ECHO + "    print(json.dumps({'id': n, 'answer': {'n': n}}), flush=True)")
    job = client.ask(QUESTION)
    assert job.done.wait(30) and job.answer == {"n": 1}
    assert client.ask(QUESTION) is job


def test_an_error_is_a_sentence_that_stays_until_one_asks_anew(make_client: Maker) -> None:
    """A page that shows it runs again and again: it must not start the worker each time."""
    client = make_client(ECHO + "    print(json.dumps({'id': n, 'error': f'no {n}'}), flush=True)")
    first = client.ask(QUESTION)
    assert first.done.wait(30) and first.error == "no 1"
    assert client.ask(QUESTION) is first
    client.forget(QUESTION)
    second = client.ask(QUESTION)
    assert second.done.wait(30) and second.error == "no 2"


def test_a_worker_that_dies_ends_its_job_and_another_takes_its_place(make_client: Maker) -> None:
    client = make_client("import sys; sys.stdin.readline(); sys.exit(3)")
    for _ in range(2):
        job = client.ask(QUESTION)
        assert job.done.wait(30)
        assert (
            "The process for the model ended with exit code 3" in job.error
            or "cannot be reached" in job.error
        )
        client.forget(QUESTION)


def test_a_worker_that_is_too_slow_is_ended(make_client: Maker) -> None:
    client = make_client("import sys; [0 for _ in sys.stdin]", limit_s=0.0)
    job = client.ask(QUESTION)
    process = client._process
    client.check_time(job)
    assert "no answer within 0 s" in job.error
    assert process is not None and not process.is_running


def test_the_worker_ends_when_its_parents_pipe_does() -> None:
    """Also one whose parent was killed: the pipe closes by itself."""
    worker = subprocess.Popen(
        [sys.executable, "-m", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert worker.communicate(timeout=60) == ("", None)
    assert worker.returncode == 0


@pytest.mark.slow
def test_nothing_but_the_worker_imports_torch() -> None:
    code = (
        "import sys, app.debugger.pages.kernel, app.debugger.pages.capacity, app.debugger.kernel_walk.client\n"
        "import app.debugger.kernel_walk.worker\n"
        "print(json.dumps(sorted(m for m in sys.modules if m.partition('.')[0] == 'torch')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import json\n" + code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == []
