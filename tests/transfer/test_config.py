"""Settings that cannot work are rejected before weights are loaded, with a remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import ConfigError, EngineArgs, KVTransferConfig
from engine.llm import LLM
from engine.resolve import resolve as resolve_args
from engine.sampling_params import SamplingParams
from tests.transfer.pairs import TRANSPORTS, shared_memory, tcp

PROMPT = [(11 * position) % 120 + 2 for position in range(40)]


def resolve(config: Any, **others: Any) -> KVTransferConfig | None:
    return resolve_args(EngineArgs.create(kv_transfer_config=config, **others)).kv_transfer


def test_without_the_setting_there_is_no_connector() -> None:
    assert resolve(None) is None


def test_json_and_a_dict_mean_the_same() -> None:
    text = '{"kv_connector": "TCPConnector", "kv_role": "kv_consumer"}'
    assert resolve(text) == resolve({"kv_connector": "TCPConnector", "kv_role": "kv_consumer"})


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("{", "not valid JSON"),
        ([1], "kv_transfer_config must be a dict"),
        ({}, "needs kv_connector"),
        ({"kv_connector": 3}, "needs kv_connector"),
        ({"kv_conector": "TCPConnector"}, "did you mean 'kv_connector'"),
        ({"kv_connector": "NixlConnector"}, "choose .*SharedMemoryConnector, TCPConnector"),
        ({"kv_connector": "no.such.module:Class"}, "cannot be imported"),
        ({"kv_connector": "engine.core.connector:Nothing"}, "cannot be imported"),
        ({"kv_connector": "engine.core.blocks:BlockPool"}, "has no check_config, make_worker"),
        ({"kv_connector": "TCPConnector", "kv_role": "producer"}, "kv_producer, kv_consumer, kv_both"),
        ({"kv_connector": "TCPConnector", "kv_load_failure_policy": "retry"}, "recompute, fail"),
        ({"kv_connector": "TCPConnector", "kv_connector_extra_config": "x"}, "must be a dict"),
        ({"kv_connector": "SharedMemoryConnector"}, "path"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        resolve(config)


@pytest.mark.parametrize(
    ("make", "extra", "complaint"),
    [
        (tcp, {"prot": 1}, "did you mean 'port'"),
        (tcp, {"port": "80"}, "port must be int"),
        (tcp, {"port": True}, "port must be int"),
        (tcp, {"port": 70000}, "0 to 65535"),
        (tcp, {"load_timeout_s": 0}, "greater than 0"),
        (tcp, {"load_timeout_s": float("nan")}, "must be float"),
        (shared_memory, {"capacity_bytes": -1}, "greater than 0"),
        (shared_memory, {"path": 3}, "path must be str"),
    ],
)
def test_extra_settings_are_checked_by_their_connector(
    make: Any, extra: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    config = make(tmp_path)
    config["kv_connector_extra_config"] |= extra
    with pytest.raises(ConfigError, match=complaint):
        resolve(config)


def test_blocks_that_have_no_hashes_or_no_whole_cannot_travel() -> None:
    config = {"kv_connector": "TCPConnector"}
    with pytest.raises(ConfigError, match="enable_prefix_caching=True"):
        resolve(config, enable_prefix_caching=False)
    with pytest.raises(ConfigError, match="works with one worker"):
        resolve(config, tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="engine's own process"):
        resolve(config, distributed_executor_backend="mp")


def test_a_port_that_is_taken_is_told_before_the_first_step(make_engine: Any, tmp_path: Path) -> None:
    first = make_engine(kv_transfer_config=tcp(tmp_path))
    port = first.executor.worker._kv_connector.address["remote_port"]
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
        make_engine(kv_transfer_config=tcp(tmp_path, port=port))


def test_a_folder_that_cannot_be_made_is_told_before_the_first_step(make_engine: Any, tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("a file")
    with pytest.raises(ConfigError, match="cannot use the folder"):
        make_engine(kv_transfer_config=shared_memory(tmp_path))


@pytest.mark.parametrize(
    "extra_args", [{"other": 1}, "text", {"kv_transfer_params": [1]}], ids=["unknown", "text", "list"]
)
def test_extra_args_hold_kv_transfer_params_and_nothing_else(extra_args: Any) -> None:
    with pytest.raises(ValueError, match="kv_transfer_params"):
        SamplingParams(extra_args=extra_args)


def test_params_for_a_connector_that_is_not_there_are_refused(model_dir: Path) -> None:
    params = SamplingParams(extra_args={"kv_transfer_params": {"do_remote_decode": True}})
    with (
        LLM(str(model_dir), load_format="dummy", skip_tokenizer_init=True) as llm,
        pytest.raises(ValueError, match="start it with kv_transfer_config"),
    ):
        llm.generate(PROMPT, params)


@pytest.mark.parametrize("name", TRANSPORTS)
def test_the_params_travel_through_generate(name: str, model_dir: Path, tmp_path: Path) -> None:
    """Run the example of the README: two engines, three calls."""
    settings = {"load_format": "dummy", "skip_tokenizer_init": True, "max_num_seqs": 4}
    config = TRANSPORTS[name](tmp_path)
    sampling = {"temperature": 0.0, "ignore_eos": True}
    ask = SamplingParams(
        max_tokens=1, extra_args={"kv_transfer_params": {"do_remote_decode": True}}, **sampling
    )
    with (
        LLM(str(model_dir), kv_transfer_config={"kv_role": "kv_producer", **config}, **settings) as prefill,
        LLM(str(model_dir), kv_transfer_config={"kv_role": "kv_consumer", **config}, **settings) as decode,
        LLM(str(model_dir), **settings) as plain,
    ):
        [first] = prefill.generate(PROMPT, ask)
        extra_args = {"kv_transfer_params": first.kv_transfer_params}
        [answer] = decode.generate(PROMPT, SamplingParams(max_tokens=9, extra_args=extra_args, **sampling))
        [expected] = plain.generate(PROMPT, SamplingParams(max_tokens=9, **sampling))
    assert answer.outputs[0].token_ids == expected.outputs[0].token_ids
    assert answer.num_cached_tokens == 32 and expected.num_cached_tokens == 0
