"""KV transfers, one decision at a time: which request waits, what owns the blocks meanwhile, what is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import TierConfig
from engine.core.connector import BlockTransfer, KVConnectorMetadata, KVConnectorOutput
from engine.core.errors import WorkerContractError
from engine.core.request import Request
from engine.core.sched_output import ModelRunnerOutput, Reason, SchedulerOutput, reason_of
from engine.trace.reader import TraceReader
from engine.trace.why import why
from engine.trace.writer import TraceWriter
from tests.core.driver import Driver, rows

PROMPT = list(range(100, 114))
"""Three full blocks of 4, and two tokens."""


class Elsewhere:
    """A scheduler half that knows of as many tokens as a test says, and keeps what the test says."""

    def __init__(self, num_tokens: int = 12, keeps: bool = False) -> None:
        self.num_tokens = num_tokens
        self.keeps = keeps
        self.decisions: list[tuple[str, int]] = []

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> int:
        return self.num_tokens - num_computed_tokens

    def update_state_after_alloc(self, request: Request, num_external_tokens: int) -> None:
        self.decisions.append((request.request_id, num_external_tokens))

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.keeps, {"blocks": len(block_ids)}

    def build_connector_meta(
        self, loads: list[BlockTransfer], saves: list[BlockTransfer]
    ) -> KVConnectorMetadata:
        return KVConnectorMetadata(loads, saves)


def connected(connector: Elsewhere, **policy: str) -> Driver:
    return Driver(resources={"connector": connector, **policy})


def end(driver: Driver, **ended: Any) -> None:
    """One step in which the worker reports this."""
    out = driver.schedule()
    driver.scheduler.update(out, results(driver, out, **ended))
    driver.scheduler.check_integrity()


def results(driver: Driver, out: SchedulerOutput, **ended: Any) -> ModelRunnerOutput:
    """Answer like a worker that always samples 1."""
    result = ModelRunnerOutput(kv_connector_output=KVConnectorOutput(**ended) if ended else None)
    for row in out.scheduled:
        if row.start + row.num_tokens >= driver.scheduler.requests[row.request_id].num_tokens:
            result.sampled_token_ids[row.request_id] = [1]
    return result


def loads(driver: Driver) -> list[BlockTransfer]:
    return [load for out in driver.steps for load in out.kv_connector_metadata.loads]


def test_a_request_waits_for_its_kv_and_starts_behind_it() -> None:
    driver = connected(Elsewhere())
    driver.add("a", PROMPT)
    reason = reason_of(driver.step(), "a")
    assert reason is not None and (reason.reason, reason.details) == (Reason.KV_TRANSFER, {"loads": 1})
    [load] = loads(driver)
    assert len(load.block_ids) == 3
    end(driver, finished_recving={load.transfer_id: 3})
    assert rows(driver.step()) == {"a": (12, 2)}
    assert driver.scheduler.requests["a"].num_cached_tokens == 12


def test_others_go_on_while_one_waits_for_kv() -> None:
    connector = Elsewhere()
    driver = connected(connector)
    driver.add("a", PROMPT)
    driver.step()
    connector.num_tokens = 0
    driver.add("b", 6)
    assert rows(driver.step()) == {"b": (0, 6)}


def test_blocks_on_their_way_are_nobody_elses_and_not_in_the_cache() -> None:
    driver = connected(Elsewhere())
    driver.add("a", PROMPT)
    driver.step()
    pool = driver.scheduler.kv.pool
    assert pool.num_used == 3 and not pool.cached


@pytest.mark.parametrize("num_good", [0, 1, 2])
def test_what_did_not_come_is_computed_from_the_last_good_block(num_good: int) -> None:
    driver = connected(Elsewhere())
    driver.add("a", PROMPT)
    driver.step()
    end(driver, finished_recving={loads(driver)[0].transfer_id: num_good})
    stats = driver.scheduler.stats
    assert (stats.num_kv_load_failures, stats.external_prefix_cache_hits) == (1, 4 * num_good)
    assert rows(driver.step()) == {"a": (4 * num_good, 14 - 4 * num_good)}
    assert len(loads(driver)) == 1, "what failed is not tried again"


def test_with_the_policy_fail_a_request_whose_kv_did_not_come_ends() -> None:
    driver = connected(Elsewhere(), kv_load_failure_policy="fail")
    driver.add("a", PROMPT)
    out = driver.step()
    ended = KVConnectorOutput(finished_recving={loads(driver)[0].transfer_id: 2})
    [output] = driver.scheduler.update(driver.schedule(), ModelRunnerOutput(kv_connector_output=ended))
    assert output.finish_reason == "error" and "kv_load_failure_policy" in str(output.error)
    assert out.scheduled == [] and driver.scheduler.kv.pool.num_used == 0


def test_an_aborted_request_leaves_its_blocks_to_the_transfer_until_that_ends() -> None:
    driver = connected(Elsewhere())
    driver.add("a", PROMPT)
    driver.step()
    driver.scheduler.abort(["a"])
    pool = driver.scheduler.kv.pool
    assert pool.num_used == 3 and driver.scheduler.has_unfinished()
    end(driver, finished_recving={loads(driver)[0].transfer_id: 3})
    assert pool.num_used == 0 and len(pool.cached) == 3, "what came is of use to the next"
    assert not driver.scheduler.has_unfinished()


def test_a_request_may_use_the_id_of_one_whose_load_still_runs() -> None:
    driver = connected(Elsewhere())
    driver.add("a", PROMPT)
    driver.step()
    driver.scheduler.abort(["a"])
    driver.add("a", PROMPT)
    assert reason_of(driver.step(), "a").reason is Reason.KV_TRANSFER
    assert len(loads(driver)) == 1, "the blocks are on their way already"
    end(driver, finished_recving={0: 3})
    assert rows(driver.step()) == {"a": (12, 2)}


def test_two_requests_with_one_prefix_load_it_once() -> None:
    driver = connected(Elsewhere())
    driver.add("a", PROMPT)
    driver.add("b", PROMPT)
    driver.step()
    assert len(loads(driver)) == 1
    end(driver, finished_recving={0: 3})
    assert {start for start, _ in rows(driver.step()).values()} == {12}


def test_only_what_the_cache_lacks_is_loaded() -> None:
    connector = Elsewhere(num_tokens=0)
    driver = connected(connector)
    driver.add("a", PROMPT[:8], max_tokens=1)
    driver.run()
    connector.num_tokens = 12
    driver.add("b", PROMPT)
    driver.step()
    assert [len(load.block_ids) for load in loads(driver)] == [1]
    assert driver.scheduler.stats.external_prefix_cache_queries == 6


@pytest.mark.parametrize(("promised", "num_loaded"), [(12, 0), (1000, 0), (16, 1), (1001, 1)])
def test_a_promise_counts_up_to_the_prompt_and_only_beyond_what_the_host_has(
    promised: int, num_loaded: int
) -> None:
    connector = Elsewhere(num_tokens=0)
    tiers = TierConfig(20, offload=True)
    driver = Driver(num_blocks=12, tiers=tiers, resources={"connector": connector})
    driver.add("a", PROMPT, max_tokens=1)
    driver.run()
    driver.add("b", 47, max_tokens=1)  # takes all blocks of the device
    driver.run()
    connector.num_tokens = promised
    driver.add("c", [*PROMPT, *range(num_loaded * 4)])
    out = driver.step()
    assert [len(load.block_ids) for load in loads(driver)] == [3 + num_loaded] * bool(num_loaded)
    assert len(out.copy_in) == (0 if num_loaded else 3)


def test_a_request_with_nothing_elsewhere_is_decided_about_once_and_starts_at_once() -> None:
    connector = Elsewhere(num_tokens=0)
    driver = connected(connector)
    driver.add("a", PROMPT)
    assert rows(driver.step()) == {"a": (0, 14)}
    driver.run()
    assert connector.decisions == [("a", 0)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_blocks_of_finished_requests_stay_until_they_are_sent_in_either_order(order: tuple[int, int]) -> None:
    driver = connected(Elsewhere(num_tokens=0, keeps=True))
    for name in "ab":
        driver.add(name, PROMPT, max_tokens=1)
    driver.run_until(lambda: len(driver.outputs) == 2)
    pool = driver.scheduler.kv.pool
    assert driver.outputs["a"][-1].kv_transfer_params == {"blocks": 3}
    assert pool.num_used == 3 and [block.ref_count for block in pool.blocks].count(2) == 3
    driver.scheduler.abort(["a", "b"])  # too late to change anything
    end(driver, finished_sending=[order[0]])
    assert pool.num_used == 3
    end(driver, finished_sending=[order[1]], num_bytes_sent=10)
    assert pool.num_used == 0 and driver.scheduler.stats.kv_bytes_sent == 10


@pytest.mark.parametrize("order", [("recving", "sending"), ("sending", "recving")])
def test_a_request_that_loads_and_one_that_sends_the_same_blocks_end_in_either_order(
    order: tuple[str, str],
) -> None:
    connector = Elsewhere(num_tokens=0, keeps=True)
    driver = connected(connector)
    driver.add("a", PROMPT[:9], max_tokens=1)
    driver.run_until(lambda: "a" in driver.outputs)
    connector.num_tokens, connector.keeps = 12, False
    driver.add("b", PROMPT, max_tokens=1)
    driver.step()
    pool = driver.scheduler.kv.pool
    assert pool.num_used == 3  # two that a sends and b keeps, one that comes
    for what in order:
        end(driver, **({"finished_sending": [0]} if what == "sending" else {"finished_recving": {1: 1}}))
    assert pool.num_used == 0 and len(pool.cached) == 3


def test_an_aborted_request_keeps_nothing_for_others() -> None:
    driver = connected(Elsewhere(num_tokens=0, keeps=True))
    driver.add("a", PROMPT, max_tokens=5)
    driver.step()
    driver.scheduler.abort(["a"])
    assert driver.scheduler.kv.pool.num_used == 0 and not driver.scheduler.has_unfinished()


@pytest.mark.parametrize("ended", [{"finished_recving": {7: 1}}, {"finished_sending": [7]}])
def test_a_transfer_that_nobody_began_is_the_workers_mistake(ended: dict[str, Any]) -> None:
    driver = connected(Elsewhere())
    with pytest.raises(WorkerContractError):
        end(driver, **ended)


def test_a_cache_whose_blocks_are_on_their_way_is_not_reset() -> None:
    driver = connected(Elsewhere())
    driver.add("a", PROMPT)
    driver.step()
    driver.scheduler.abort(["a"])
    assert not driver.scheduler.reset_prefix_cache()


def test_the_trace_of_transfers_replays_exactly(tmp_path: Path) -> None:
    driver = connected(Elsewhere(keeps=True))
    path = tmp_path / "run.itrace"
    tracer = TraceWriter(path, {}, driver.scheduler)

    def step(**ended: Any) -> None:
        out = driver.schedule()
        result = results(driver, out, **ended)
        tracer.step(out, result, driver.scheduler.update(out, result), 0.001)

    for name in "ab":
        tracer.add(driver.add(name, PROMPT, max_tokens=2))
    step()
    tracer.abort(output.request_id for output in driver.scheduler.abort(["a"]))
    step(finished_recving={0: 2}, num_bytes_received=8)
    step()
    step(finished_recving={1: 1})
    while driver.scheduler.requests:
        step()
    step(finished_sending=[2], num_bytes_sent=12)
    tracer.close()
    reader = TraceReader(path)
    assert not reader.problems and not reader.warnings
    assert reader.step(1).counters["num_kv_load_failures"] == 1
    assert reader.step(1).counters["kv_bytes_received"] == 8
    assert "from another engine" in why(reader, "b", 0).sentence
