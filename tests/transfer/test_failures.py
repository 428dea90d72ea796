"""Whatever happens on the way, the tokens are those of a local run, and no block is lost."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.engine_core import EngineCore
from engine.transfer.blocks import HEADER_BYTES
from tests.engine.harness import TINY_LLAMA
from tests.transfer.bad_network import BadNetwork, Fault
from tests.transfer.pairs import Totals, ask, prefill, run, settle, shared_memory, tcp
from tests.transfer.test_handoff import BLOCK_SIZE, NUM_FULL, PROMPT

BLOCK_BYTES = 2 * 2 * 2 * BLOCK_SIZE * 16 * 4
PACKET = HEADER_BYTES + BLOCK_BYTES
ANSWER = 8 + len(json.dumps({"blocks": NUM_FULL}))
"""Bytes of the message in front of the packets."""
MakeEngine = Callable[..., EngineCore]


@pytest.fixture(scope="module")
def local(make_engine: MakeEngine) -> list[int]:
    return run(make_engine(), ask("a", PROMPT))["a"].token_ids


@pytest.fixture
def producer(make_engine: MakeEngine, tmp_path: Path) -> Iterator[EngineCore]:
    engine = make_engine(kv_transfer_config={"kv_role": "kv_producer", **tcp(tmp_path)})
    yield engine
    engine.shutdown()


@pytest.fixture
def consumer(make_engine: MakeEngine, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[EngineCore]:
    """It waits for a minute, as on a busy machine a second may pass between two packets; or as long as a test says."""
    options = tcp(tmp_path, load_timeout_s=getattr(request, "param", 60.0))
    engine = make_engine(kv_transfer_config={"kv_role": "kv_consumer", **options})
    yield engine
    engine.shutdown()


def check_recomputed(consumer: EngineCore, params: dict[str, Any], local: list[int], num_good: int) -> None:
    totals = Totals(consumer)
    answer = run(consumer, ask("a", PROMPT, params))["a"]
    assert answer.token_ids == local
    assert totals.num_kv_load_failures == 1
    assert totals.external_prefix_cache_hits == num_good * BLOCK_SIZE
    settle(consumer)


FAULTS = {
    "nothing comes": (Fault(cut_after=0), 0),
    "cut in the answer": (Fault(cut_after=5), 0),
    "cut in the first header": (Fault(cut_after=ANSWER + 9), 0),
    "cut in the third block": (Fault(cut_after=ANSWER + 2 * PACKET + 200), 2),
    "cut between two blocks": (Fault(cut_after=ANSWER + 4 * PACKET), 4),
    "another protocol": (Fault(damage_at=0), 0),
    "damaged magic": (Fault(damage_at=ANSWER + PACKET), 1),
    "damaged identity": (Fault(damage_at=ANSWER + PACKET + 10), 1),
    "damaged hash": (Fault(damage_at=ANSWER + PACKET + 40), 1),
    "damaged content": (Fault(damage_at=ANSWER + 3 * PACKET + HEADER_BYTES + 77), 3),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_transfer_that_breaks_is_computed_from_the_last_good_block(
    name: str, producer: EngineCore, consumer: EngineCore, local: list[int]
) -> None:
    fault, num_good = FAULTS[name]
    with BadNetwork(fault) as network:
        check_recomputed(consumer, network.redirect(prefill(producer, PROMPT)), local, num_good)
    settle(producer)


@pytest.mark.parametrize("consumer", [3.0], indirect=True)
def test_a_peer_that_stands_still_is_given_up_after_the_time_of_the_setting(
    producer: EngineCore, consumer: EngineCore, local: list[int]
) -> None:
    with BadNetwork(Fault(stall_after=ANSWER + PACKET + 30)) as network:
        check_recomputed(consumer, network.redirect(prefill(producer, PROMPT)), local, 1)
    settle(producer)


def test_a_network_without_faults_brings_everything(
    producer: EngineCore, consumer: EngineCore, local: list[int]
) -> None:
    totals = Totals(consumer)
    with BadNetwork(Fault()) as network:
        params = network.redirect(prefill(producer, PROMPT))
        assert run(consumer, ask("a", PROMPT, params))["a"].token_ids == local
    assert totals.external_prefix_cache_hits == NUM_FULL * BLOCK_SIZE
    settle(producer, consumer)


def test_a_peer_that_is_gone_is_told_in_the_log_and_costs_only_time(
    producer: EngineCore, consumer: EngineCore, local: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    params = prefill(producer, PROMPT)
    producer.shutdown()
    with caplog.at_level(logging.WARNING):
        check_recomputed(consumer, params, local, 0)
    assert "5 of 5 KV blocks did not come" in caplog.text and "no connection" in caplog.text


def test_an_engine_with_another_model_is_refused(
    make_engine: MakeEngine, tmp_path: Path, producer: EngineCore, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**TINY_LLAMA, "rope_theta": 5000.0}))
    other = make_engine(model=str(folder), kv_transfer_config={"kv_role": "kv_consumer", **tcp(tmp_path)})
    local = run(make_engine(model=str(folder)), ask("a", PROMPT))["a"].token_ids
    with caplog.at_level(logging.WARNING):
        check_recomputed(other, prefill(producer, PROMPT), local, 0)
    assert "another model" in caplog.text
    other.shutdown()


def test_a_shared_block_of_another_model_is_refused(
    make_engine: MakeEngine, tmp_path: Path, local: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    config = shared_memory(tmp_path)
    producer = make_engine(kv_transfer_config={"kv_role": "kv_producer", **config})
    params = prefill(producer, PROMPT)
    settle(producer)
    consumer = make_engine(kv_transfer_config={"kv_role": "kv_consumer", **config})
    with caplog.at_level(logging.WARNING):
        check_recomputed(consumer, {**params, "remote_identity": "00" * 32}, local, 0)
    assert "another model" in caplog.text
    producer.shutdown()
    consumer.shutdown()


@pytest.mark.parametrize("keep", [0, 100, -1], ids=["empty", "cut", "one byte short"])
def test_a_shared_block_that_was_cut_is_computed(
    make_engine: MakeEngine, tmp_path: Path, local: list[int], keep: int
) -> None:
    config = shared_memory(tmp_path)
    producer = make_engine(kv_transfer_config={"kv_role": "kv_producer", **config})
    params = prefill(producer, PROMPT)
    settle(producer)
    store = producer.executor.worker._kv_connector.store
    third = list(store._own)[2]
    third.write_bytes(third.read_bytes()[:keep])
    consumer = make_engine(kv_transfer_config={"kv_role": "kv_consumer", **config})
    check_recomputed(consumer, params, local, 2)
    producer.shutdown()
    consumer.shutdown()


def test_shared_blocks_that_never_appear_are_computed(
    make_engine: MakeEngine, tmp_path: Path, local: list[int]
) -> None:
    config = shared_memory(tmp_path, load_timeout_s=0.2)
    consumer = make_engine(kv_transfer_config={"kv_role": "kv_consumer", **config})
    promise = {"do_remote_prefill": True, "remote_num_blocks": NUM_FULL}
    check_recomputed(consumer, promise, local, 0)
    consumer.shutdown()


@pytest.mark.parametrize(
    "params",
    [
        {"do_remote_prefill": True, "remote_num_blocks": 5},
        {"do_remote_prefill": True, "remote_num_blocks": 5, "remote_host": 7, "remote_port": "x"},
        {"do_remote_prefill": True, "remote_num_blocks": 5, "remote_host": "no.such.host.", "remote_port": 1},
    ],
    ids=["no address", "nonsense", "unknown host"],
)
def test_params_that_lead_nowhere_are_computed(
    consumer: EngineCore, local: list[int], params: dict[str, Any]
) -> None:
    check_recomputed(consumer, params, local, 0)


@pytest.mark.parametrize("count", [-1, "five", None])
def test_a_promise_that_is_no_count_is_ignored(consumer: EngineCore, local: list[int], count: object) -> None:
    params = {"do_remote_prefill": True, "remote_num_blocks": count}
    assert run(consumer, ask("a", PROMPT, params))["a"].token_ids == local


def test_with_the_policy_fail_the_request_ends_with_an_error(make_engine: MakeEngine, tmp_path: Path) -> None:
    config = {"kv_role": "kv_consumer", "kv_load_failure_policy": "fail", **tcp(tmp_path)}
    consumer = make_engine(kv_transfer_config=config)
    params = {"do_remote_prefill": True, "remote_num_blocks": NUM_FULL}
    last = run(consumer, ask("a", PROMPT, params))["a"].last
    assert last is not None and last.finish_reason == "error"
    settle(consumer)
    consumer.shutdown()


def test_blocks_that_nobody_fetches_are_freed_in_time(make_engine: MakeEngine, tmp_path: Path) -> None:
    producer = make_engine(kv_transfer_config={"kv_role": "kv_producer", **tcp(tmp_path, send_timeout_s=0.2)})
    params = prefill(producer, PROMPT)
    assert producer.scheduler.kv.pool.num_used == NUM_FULL
    settle(producer)
    assert params["remote_num_blocks"] == NUM_FULL
    producer.shutdown()


def test_an_abort_after_the_finish_leaves_the_blocks_until_they_are_fetched(
    producer: EngineCore, consumer: EngineCore, local: list[int]
) -> None:
    params = prefill(producer, PROMPT)
    assert producer.abort(["p"]) == []
    for _ in range(3):
        producer.step()
    assert producer.scheduler.kv.pool.num_used == NUM_FULL
    totals = Totals(consumer)
    assert run(consumer, ask("a", PROMPT, params))["a"].token_ids == local
    assert totals.external_prefix_cache_hits == NUM_FULL * BLOCK_SIZE
    settle(producer, consumer)


def test_a_decode_engine_that_has_the_prefix_lets_the_prefill_engine_go(
    producer: EngineCore, consumer: EngineCore, local: list[int]
) -> None:
    run(consumer, ask("first", PROMPT))
    params = prefill(producer, PROMPT)
    assert run(consumer, ask("a", PROMPT, params))["a"].token_ids == local
    settle(producer, consumer)  # long before send_timeout_s


def test_a_request_aborted_before_it_started_lets_the_prefill_engine_go(
    producer: EngineCore, consumer: EngineCore
) -> None:
    params = prefill(producer, PROMPT)
    consumer.add_request(ask("a", PROMPT, params))
    consumer.abort(["a"])
    consumer.step()
    settle(producer, consumer)


@pytest.mark.parametrize("consumer", [3.0], indirect=True)
def test_an_abort_while_blocks_are_on_their_way_frees_them_when_they_are_there(
    producer: EngineCore, consumer: EngineCore, local: list[int]
) -> None:
    with BadNetwork(Fault(stall_after=ANSWER + PACKET)) as network:
        params = network.redirect(prefill(producer, PROMPT))
        consumer.add_request(ask("a", PROMPT, params))
        consumer.step()
        assert consumer.scheduler.kv.pool.num_used == NUM_FULL
        consumer.abort(["a"])
        assert consumer.scheduler.kv.pool.num_used == NUM_FULL
        assert run(consumer, ask("a", PROMPT))["a"].token_ids == local
        settle(consumer)
    settle(producer)


def test_a_stranger_who_talks_nonsense_to_a_prefill_engine_disturbs_nobody(
    producer: EngineCore, consumer: EngineCore, local: list[int]
) -> None:
    params = prefill(producer, PROMPT)
    address = (params["remote_host"], params["remote_port"])
    for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b"PKVM\x02\x00\x00\x00[]", b"PKVM\xff\xff\xff\xff"):
        with socket.create_connection(address) as connection:
            connection.sendall(words)
    totals = Totals(consumer)
    assert run(consumer, ask("a", PROMPT, params))["a"].token_ids == local
    assert totals.num_kv_load_failures == 0
    settle(producer, consumer)
