"""`verify` must see what is wrong: every record that is changed, every byte that flips."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.trace.format import CHECK_EVERY, TraceError
from engine.trace.reader import TraceReader
from tests.trace.trace_workloads import random_run

Records = list[dict[str, Any]]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A run with preemptions, aborts, prefix hits and evictions."""
    path = tmp_path_factory.mktemp("trace") / "run.itrace"
    for seed in range(100):
        run = random_run(path, seed, num_requests=60)
        reader = TraceReader(path)
        if all(len(reader.events(kind)) > 2 for kind in ("preempt", "abort", "hit", "evict", "unref")):
            return run.path.read_bytes()
    raise AssertionError("no seed meets all of it")


def records_of(data: bytes) -> Records:
    return [json.loads(line) for line in gzip.decompress(data).splitlines()]


def write(path: Path, records: Records, honest_log: bool) -> TraceReader:
    """Write records as a trace; an honest log CRC leaves only the state checks to see a change."""
    lines: list[bytes] = []
    log_crc = 0
    for record in records:
        if honest_log and "log" in record:
            record = {**record, "log": f"{log_crc:08x}"}
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        log_crc = zlib.crc32(line, log_crc)
        lines.append(line)
    path.write_bytes(gzip.compress(b"".join(lines)))
    return TraceReader(path)


def steps_with(records: Records, key: str) -> list[dict[str, Any]]:
    return [record for record in records if record["t"] == "step" and record.get(key)]


def visible(found: list[Any]) -> Any:
    """Choose a change whose effect still exists when the next CRC is taken."""

    def step_of(place: Any) -> int:
        return place[0]["i"] if isinstance(place, tuple) else place["i"]

    return max(found, key=lambda place: step_of(place) % CHECK_EVERY)


def event_runs(records: Records, kind: str) -> list[tuple[dict[str, Any], list[Any]]]:
    return [(record, run) for record in steps_with(records, "ev") for run in record["ev"] if run[0] == kind]


def drop_event(kind: str) -> Callable[[Records], int]:
    def mutate(records: Records) -> int:
        record, run = visible(event_runs(records, kind))
        run[2].pop()
        if kind == "seal":
            run[3].pop()
        return record["i"]

    return mutate


def drop_entry(key: str) -> Callable[[Records], int]:
    def mutate(records: Records) -> int:
        record = visible(steps_with(records, key))
        record[key].pop()
        return record["i"]

    return mutate


def drop_record(kind: str) -> Callable[[Records], int]:
    def mutate(records: Records) -> int:
        record = visible([record for record in records if record["t"] == kind])
        records.remove(record)
        return record["i"]

    return mutate


def swap_two_blocks_of_a_table(records: Records) -> int:
    left = {run[1]: record["i"] for record, run in event_runs(records, "free")}
    preempted = {number for record in steps_with(records, "pre") for number in record["pre"]}
    first: dict[int, tuple[int, list[Any]]] = {}
    for record, run in event_runs(records, "alloc"):
        step, number = record["i"], run[1]
        if number in preempted:
            continue  # its blocks may be of two tables, one after the other
        next_check = (step // CHECK_EVERY + 1) * CHECK_EVERY
        before = first.setdefault(number, (step, run))
        if (
            before[1] is not run
            and before[0] // CHECK_EVERY == step // CHECK_EVERY
            and next_check <= left[number]
        ):
            before[1][2][-1], run[2][-1] = run[2][-1], before[1][2][-1]
            return before[0]
    raise AssertionError("no table lives until the next CRC")


def change_a_hash(records: Records) -> int:
    record, run = visible(event_runs(records, "seal"))
    run[3][0] = "00" + run[3][0][2:] if not run[3][0].startswith("00") else "11" + run[3][0][2:]
    return record["i"]


def give_a_block_to_another(records: Records) -> int:
    record, run = visible([(r, run) for r, run in event_runs(records, "alloc") if r["run"] > 1])
    others = [number for number in record["q"] if number != run[1]]
    run[1] = others[0]
    return record["i"]


def change_a_count(records: Records) -> int:
    record = visible([record for record in records if record["t"] == "step"])
    record["free"] += 1
    return record["i"]


def compute_one_token_more(records: Records) -> int:
    record = visible([r for r in steps_with(records, "tok") if None in r["tok"]])
    record["n"][record["tok"].index(None)] += 1
    return record["i"]


def invent_an_output_token(records: Records) -> int:
    record = visible([r for r in steps_with(records, "tok") if isinstance(r["tok"][0], int)])
    record["tok"][0] = [record["tok"][0], 5]
    return record["i"]


def start_behind_a_hit_that_was_none(records: Records) -> int:
    record = visible([r for r in steps_with(records, "new") if None in r["tok"]])
    number = record["q"][record["tok"].index(None)]
    next(entry for entry in record["new"] if entry[0] == number)[1] += 1
    return record["i"]


def rename_a_request(records: Records) -> int:
    record = visible([record for record in records if record["t"] == "add"])
    record["r"] = "another-request"
    return record["i"]


STATE_MUTATIONS = {
    "a block event less: alloc": drop_event("alloc"),
    "a block event less: ref": drop_event("ref"),
    "a block event less: free": drop_event("free"),
    "a block event less: unref": drop_event("unref"),
    "a block event less: seal": drop_event("seal"),
    "a block event less: evict": drop_event("evict"),
    "a preemption less": drop_entry("pre"),
    "a finish less": drop_entry("fin"),
    "an admission less": drop_entry("new"),
    "an abort less": drop_record("abort"),
    "an arrival less": drop_record("add"),
    "a step less": drop_record("step"),
    "two blocks of a table swapped": swap_two_blocks_of_a_table,
    "another hash": change_a_hash,
    "another owner": give_a_block_to_another,
    "another count": change_a_count,
    "more computed": compute_one_token_more,
    "more output": invent_an_output_token,
    "another start": start_behind_a_hit_that_was_none,
    "another name": rename_a_request,
}


def test_the_original_has_no_problem(original: bytes, tmp_path: Path) -> None:
    reader = write(tmp_path / "run.itrace", records_of(original), honest_log=False)
    assert reader.problems == []


@pytest.mark.parametrize("name", STATE_MUTATIONS)
def test_a_changed_record_leads_to_another_state_and_is_found_near_its_step(
    original: bytes, tmp_path: Path, name: str
) -> None:
    records = records_of(original)
    step = STATE_MUTATIONS[name](records)
    reader = write(tmp_path / "run.itrace", records, honest_log=True)
    assert reader.problems, f"{name} goes unnoticed"
    first = min(reader.problems)
    assert step - 64 <= first.step <= step + 64 and str(first.step) in first.message


def change_a_token(records: Records) -> int:
    record = visible([r for r in steps_with(records, "tok") if isinstance(r["tok"][-1], int)])
    record["tok"][-1] += 1
    return record["i"]


def change_a_figure(records: Records) -> int:
    record = visible(steps_with(records, "why"))
    figures = record["why"][0][2]
    figures[next(iter(figures))] += 1
    return record["i"]


def change_a_reason(records: Records) -> int:
    record = visible([r for r in steps_with(records, "why") if r["why"][-1][1] != "preempting"])
    record["why"][-1][1] = "preempting"
    return record["i"]


def change_a_prompt(records: Records) -> int:
    record = visible([record for record in records if record["t"] == "add"])
    record["prompt"][0] += 1
    return record["i"]


def change_a_time(records: Records) -> int:
    record = visible([record for record in records if record["t"] == "step"])
    record["dur"] += 1.0
    return record["i"]


TEXT_MUTATIONS = (change_a_token, change_a_figure, change_a_reason, change_a_prompt, change_a_time)


@pytest.mark.parametrize("mutate", TEXT_MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_a_change_that_no_state_shows_is_found_by_the_crc_of_the_lines(
    original: bytes, tmp_path: Path, mutate: Callable[[Records], int]
) -> None:
    records = records_of(original)
    step = mutate(records)
    reader = write(tmp_path / "run.itrace", records, honest_log=False)
    assert "differs from what was written" in reader.problems[0].message
    assert reader.problems[0].step <= step <= reader.problems[0].step + 64


def test_a_flipped_byte_anywhere_is_found(original: bytes, tmp_path: Path) -> None:
    rng = random.Random(0)
    text = gzip.decompress(original)
    path = tmp_path / "run.itrace"
    positions = [*range(12), *rng.sample(range(len(original)), 60), *range(len(original) - 10, len(original))]
    for position in positions:
        flipped = bytearray(original)
        flipped[position] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        try:
            reader = TraceReader(path)
        except TraceError:
            continue
        if reader.problems:
            continue
        same = gzip.decompress(bytes(flipped)) == text
        assert same, f"byte {position} flipped, but it was not noticed"
