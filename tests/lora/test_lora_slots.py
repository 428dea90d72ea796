"""LoRA slots: assignment, waiting requests, no starvation."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.lora_slots import LoRASlots
from engine.core.request import Request
from engine.core.sched_output import Reason, SchedulerOutput, reason_of
from tests.core.driver import Driver, make_request, rows

KEYS = "abcdefgh"


def driver(max_loras: int, max_num_seqs: int = 8, **options: Any) -> Driver:
    return Driver(max_loras=max_loras, max_num_seqs=max_num_seqs, **options)


def prefetching(max_loras: int, depth: int, max_cpu_loras: int = 0, **options: Any) -> Driver:
    return driver(max_loras, max_cpu_loras=max_cpu_loras or depth, lora_prefetch=depth, **options)


def user(key: str) -> Request:
    return make_request("user", lora_key=key)


def test_a_request_whose_adapter_has_no_slot_waits_and_the_base_goes_on() -> None:
    d = driver(max_loras=1)
    d.add("a1", lora_key="a")
    d.add("b1", lora_key="b")
    d.add("base")
    out = d.step()
    assert set(rows(out)) == {"a1", "base"}
    waits = reason_of(out, "b1")
    assert waits is not None and waits.reason is Reason.NO_LORA_SLOT
    assert waits.details == {"slots": 1, "running": 1}
    assert out.lora_loads == [("a", 0)]
    d.run()
    assert all(d.finish_reason(name) == "length" for name in ("a1", "b1", "base"))


def test_counters_say_what_was_loaded_evicted_and_waited_for() -> None:
    """Two slots, three adapters one after the other and the first again: exactly the LRU's figures."""
    d = driver(max_loras=2)
    total = Counter()
    for name, key in [("1", "a"), ("2", "b"), ("3", "c"), ("4", "b"), ("5", "a")]:
        d.add(name, lora_key=key, max_tokens=2)
        while d.scheduler.has_unfinished():
            d.step()
            stats = d.scheduler.stats
            total += Counter(
                loads=stats.num_lora_loads, evictions=stats.num_lora_evictions, waits=stats.num_lora_waits
            )
    assert total == Counter(loads=4, evictions=2)


def test_the_adapter_idle_for_the_longest_is_replaced() -> None:
    slots = LoRASlots(2)
    for key in "ab":
        slots.acquire(user(key))
    slots.release(user("b"))
    slots.release(user("a"))
    slots.acquire(user("c"))
    assert slots.slot_of == {"a": 0, "c": 1}


def test_an_adapter_stays_while_somebody_uses_it_and_after() -> None:
    slots = LoRASlots(1)
    slots.acquire(user("a"))
    slots.acquire(user("a"))
    slots.release(user("a"))
    assert not slots.has_room("b")
    slots.release(user("a"))
    slots.begin_step()
    assert slots.has_room("a") and slots.loads == []
    assert slots.has_room("b")


def test_an_adapter_in_demand_cannot_keep_its_only_slot_for_ever() -> None:
    """New requests for `a` come in every step. `b` gets its turn when those that ran before it are through."""
    d = driver(max_loras=1)
    d.add("a0", lora_key="a", max_tokens=6)
    d.step()
    d.add("b", lora_key="b")
    for number in range(1, 30):
        d.add(f"a{number}", lora_key="a", max_tokens=6)
        d.step()
        if d.outputs.get("b"):
            break
    assert d.outputs["b"] and number <= 8
    d.run()


def test_of_several_slots_only_one_closes_for_those_behind() -> None:
    d = driver(max_loras=2)
    d.add("a1", lora_key="a", max_tokens=20)
    d.add("b1", lora_key="b", max_tokens=20)
    d.add("b2", lora_key="b", max_tokens=20)
    d.step()
    d.add("c", lora_key="c")
    d.add("a2", lora_key="a")
    d.add("b3", lora_key="b")
    out = d.step()
    assert "b3" in rows(out), "b has more users than a, so its slot stays open"
    assert {reason_of(out, name).reason for name in ("c", "a2")} == {Reason.NO_LORA_SLOT}
    d.run()


def test_an_unloaded_adapter_frees_its_slot() -> None:
    slots = LoRASlots(1)
    slots.acquire(user("a"))
    slots.unload("a")
    assert "a" in slots.slot_of, "it is in use"
    slots.release(user("a"))
    slots.unload("a")
    slots.acquire(user("b"))
    assert slots.slot_of == {"b": 0} and slots.num_evictions == 0


@given(
    max_loras=st.integers(1, 3),
    arrivals=st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from(KEYS), st.integers(1, 6)), min_size=1, max_size=40
    ),
)
@settings(max_examples=60, deadline=None)
def test_nobody_starves(max_loras: int, arrivals: list[tuple[int, str, int]]) -> None:
    """Requests of other adapters overtake a waiting one only until the users of the closed slot finish. So it waits
    for at most as many steps as everything ahead of it and those users need."""
    d = driver(max_loras, max_num_seqs=4)
    longest = 6
    pending = sorted(arrivals)
    waited: dict[str, int] = {}
    step = 0
    while pending or d.scheduler.has_unfinished():
        while pending and pending[0][0] <= step:
            _, key, max_tokens = pending.pop(0)
            d.add(f"r{len(waited)}", prompt=3, lora_key=key, max_tokens=max_tokens)
            waited[f"r{len(waited)}"] = 0
        out = d.step()
        head = next(iter(d.scheduler.waiting), None)
        for name in waited:
            if (reason := reason_of(out, name)) is not None and reason.reason is Reason.NO_LORA_SLOT:
                waited[name] += head is not None and head.request_id == name
        used = {request.lora_key for request in d.scheduler.running}
        assert len(used) <= max_loras
        step += 1
        assert step < 2000
    assert max(waited.values()) <= longest + 1, "the first in line waits only for the users of one slot"


def test_the_closed_slot_gains_no_users_until_it_is_idle() -> None:
    """Under endless demand the first request in line gets a slot within the run time of one request."""
    d = driver(max_loras=2, max_num_seqs=6)
    lives: dict[str, int] = {}
    for step in range(120):
        key = KEYS[step % 2] if step % 5 else KEYS[2 + step % 3]
        d.scheduler.add(make_request(f"r{step}", 3, lora_key=key, max_tokens=5, arrival=float(step)))
        lives[f"r{step}"] = step
        d.step()
    first_in_line = next(iter(d.scheduler.waiting)).request_id
    d.run_until(lambda: first_in_line not in {r.request_id for r in d.scheduler.waiting}, most=12)
    d.run()


@pytest.mark.parametrize("max_loras", [1, 2])
def test_slots_are_free_again_after_aborts_and_preemptions(max_loras: int) -> None:
    d = driver(max_loras, num_blocks=8)
    for number in range(6):
        d.add(f"r{number}", prompt=6, lora_key=KEYS[number % max_loras], max_tokens=12)
    for _ in range(8):
        d.step()
    assert any(step.preempted_request_ids for step in d.steps)
    d.scheduler.abort(list(d.scheduler.requests))
    d.scheduler.check_integrity()
    assert not LoRASlots.of(d.scheduler).num_users


class ShadowWorker:
    """Follows the messages of the steps, and counts what it reads."""

    def __init__(self) -> None:
        self.on_host: set[str] = set()
        self.slots: dict[int, str] = {}
        self.reads = 0
        self.prefetches = 0

    def load(self, key: str, drops: list[str]) -> None:
        self.on_host.add(key)
        self.on_host -= set(drops)

    def step(self, out: SchedulerOutput) -> None:
        for key, slot in out.lora_loads:
            self.reads += key not in self.on_host
            self.on_host.add(key)
            self.slots[slot] = key
        self.on_host -= set(out.lora_drops)
        for key, slot in out.lora_prefetches:
            self.prefetches += 1
            self.on_host.add(key)
            if slot >= 0:
                self.slots[slot] = key


def test_the_adapters_of_the_next_waiting_requests_are_read_while_others_run() -> None:
    d = prefetching(max_loras=1, depth=2, max_cpu_loras=3)
    slots = LoRASlots.of(d.scheduler)
    for name in "abcde":  # the host keeps c, d and e
        slots.load(name)
    for name in "abcde":
        d.add(f"{name}1", lora_key=name)
    first = d.step()
    assert first.lora_loads == [("a", 0)] and d.scheduler.stats.num_lora_reads == 1
    assert first.lora_prefetches == [("b", -1)], "c is in host memory and next in line, so it stays"
    assert first.lora_drops == ["d", "e"]
    reads = 0
    while d.scheduler.has_unfinished():
        d.step()
        reads += d.scheduler.stats.num_lora_reads
    assert reads == 0, "every later adapter was in host memory when its request started"


def test_a_free_slot_is_filled_while_its_request_waits_for_a_seat() -> None:
    d = prefetching(max_loras=2, depth=1, max_cpu_loras=2, max_num_seqs=1)
    d.add("a1", lora_key="a")
    d.add("b1", lora_key="b")
    out = d.step()
    assert out.lora_loads == [("a", 0)] and out.lora_prefetches == [("b", 1)]
    assert d.scheduler.stats.num_lora_loads == 2 and d.scheduler.stats.num_lora_prefetches == 1
    d.run()
    assert all(not step.lora_loads and not step.lora_prefetches for step in d.steps[1:])


def test_the_adapter_of_an_aborted_request_is_not_kept_for_it() -> None:
    d = prefetching(max_loras=1, depth=1, max_cpu_loras=1)
    slots = LoRASlots.of(d.scheduler)
    for name in "cba":
        slots.load(name)
    for name in "abc":
        d.add(f"{name}1", lora_key=name)
    assert d.step().lora_prefetches == [("b", -1)]
    d.scheduler.abort(["b1"])
    out = d.step()
    assert out.lora_prefetches == [("c", -1)] and out.lora_drops == ["b"]
    d.run()
    d.scheduler.check_integrity()


def test_the_adapter_of_the_request_next_in_line_comes_first() -> None:
    """The first request for c is aborted: b is then ahead of c."""
    d = prefetching(max_loras=1, depth=1, max_cpu_loras=2)
    slots = LoRASlots.of(d.scheduler)
    for name in "bca":
        slots.load(name)
    for request_id in ("a1", "c1", "b1", "c2"):
        d.add(request_id, lora_key=request_id[0])
    d.scheduler.abort(["c1"])
    assert d.step().lora_prefetches == [("b", -1)]
    d.run()


def test_an_adapter_that_the_step_uses_is_not_dropped_in_it() -> None:
    d = driver(max_loras=2, max_cpu_loras=2)
    slots = LoRASlots.of(d.scheduler)
    for name in "abc":
        slots.load(name)
    for name in "ab":
        d.add(f"{name}1", lora_key=name)
    out = d.step()
    assert [key for key, _ in out.lora_loads] == ["a", "b"] and out.lora_drops == ["c"]
    assert set(slots.host.keys) == {"a", "b"}
    d.run()


def test_more_to_fetch_than_host_memory_holds_is_cut_to_it() -> None:
    d = prefetching(max_loras=1, depth=3, max_cpu_loras=2)
    for name in "abcd":
        d.add(f"{name}1", lora_key=name)
    d.step()
    assert LoRASlots.of(d.scheduler)._wanted == ["b", "c"]
    d.step()
    assert not d.steps[-1].lora_prefetches, "nothing is dropped for the next one in line and fetched again"
    d.run()


def test_an_unloaded_adapter_leaves_slot_and_host_memory() -> None:
    d = prefetching(max_loras=2, depth=1, max_cpu_loras=2, max_num_seqs=1)
    slots = LoRASlots.of(d.scheduler)
    d.add("a1", lora_key="a")
    d.add("b1", lora_key="b")
    d.step()
    d.scheduler.abort(["b1"])
    slots.forget("b")
    assert "b" not in slots.slot_of and "b" not in slots.host
    d.run()
    d.scheduler.check_integrity()


def test_after_a_step_that_failed_the_same_is_fetched_again() -> None:
    d = prefetching(max_loras=2, depth=1, max_cpu_loras=2, max_num_seqs=1)
    d.add("a1", lora_key="a")
    d.add("b1", lora_key="b")
    assert d.scheduler.schedule().lora_prefetches == [("b", 1)]
    d.scheduler.abort(["a1"])
    d.add("a2", lora_key="a")
    again = d.scheduler.schedule()  # without an update of the first
    assert {key for key, _ in (*again.lora_loads, *again.lora_prefetches)} == {"a", "b"}


@given(
    max_loras=st.integers(1, 3),
    depth=st.integers(1, 4),
    spare=st.integers(0, 3),
    max_num_seqs=st.integers(1, 5),
    events=st.lists(
        st.tuples(
            st.integers(0, 30),
            st.sampled_from(KEYS),
            st.integers(1, 6),
            st.sampled_from(["", "abort", "unload"]),
        ),
        min_size=1,
        max_size=30,
    ),
)
@settings(max_examples=80, deadline=None)
def test_fetching_ahead_changes_no_step_and_every_worker_holds_what_the_scheduler_counts(
    max_loras: int, depth: int, spare: int, max_num_seqs: int, events: list[tuple[int, str, int, str]]
) -> None:
    """The same arrivals, aborts and unloads with and without: the same rows in every step."""

    def run(prefetch: int) -> list[dict[str, tuple[int, int]]]:
        host = max(max_loras, depth) + spare
        d = driver(
            max_loras, max_num_seqs=max_num_seqs, num_blocks=5, max_cpu_loras=host, lora_prefetch=prefetch
        )
        slots, worker, pending, seen = LoRASlots.of(d.scheduler), ShadowWorker(), sorted(events), []
        versions: Counter[str] = Counter()
        loaded: dict[str, str] = {}
        while pending or d.scheduler.has_unfinished():
            while pending and pending[0][0] <= len(seen):
                _, name, max_tokens, then = pending.pop(0)
                if name not in loaded:
                    versions[name] += 1
                    loaded[name] = f"{name}|{versions[name]}"
                    worker.load(loaded[name], slots.load(loaded[name]))
                request_id = f"r{len(events) - len(pending)}"
                d.add(request_id, prompt=3, lora_key=loaded[name], max_tokens=max_tokens)
                if then == "abort":
                    d.scheduler.abort([request_id])
                if then == "unload":
                    key = loaded.pop(name)
                    d.scheduler.abort(
                        [r.request_id for r in d.scheduler.requests.values() if r.lora_key == key]
                    )
                    slots.forget(key)
                    worker.on_host.discard(key)
            out = d.step()
            worker.step(out)
            seen.append(rows(out))
            assert worker.on_host == set(slots.host.keys)
            assert {key: slot for slot, key in worker.slots.items() if key in slots.slot_of} == slots.slot_of
            assert len(worker.on_host) <= host
            stats = d.scheduler.stats
            assert stats.num_lora_prefetches == len(out.lora_prefetches) <= prefetch
            worker.reads -= stats.num_lora_reads
            d.scheduler.check_integrity()
            assert len(seen) < 2000
        assert worker.reads == 0, "the counters say exactly what the worker read in a step"
        return seen

    assert run(depth) == run(0)
