"""The gauge of KV usage is what the block pool says, also when no request is left."""

from __future__ import annotations

import pytest

from engine.config import EngineArgs
from engine.core.kv_manager import KVManager
from engine.frontend.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams
from engine.server.metrics import PrometheusLogger


def usage_after_abort(*, own_process: bool) -> tuple[float, float]:
    """Return KV usage while a request runs, and after its abort."""
    args = EngineArgs(model="shop", max_num_seqs=4, num_gpu_blocks_override=128, enable_prefix_caching=False)
    engine = LLMEngine.from_args(args, own_process=own_process)
    try:
        metrics = PrometheusLogger("shop", engine.engine_core.config)
        engine.stat_loggers.append(metrics)

        def level(name: str) -> float:
            value = metrics.registry.get_sample_value(f"vllm:{name}", {"model_name": "shop", "engine": "0"})
            assert value is not None
            return value

        params = SamplingParams(max_tokens=400, ignore_eos=True)
        engine.add(engine.input_processor.process("one", "The way " * 40, params))
        while not level("kv_cache_usage_perc"):
            engine.step()
        before = level("kv_cache_usage_perc")
        engine.abort(["one"])
        while engine.has_unfinished():
            engine.step()
        assert level("num_requests_running") == 0
        return before, level("kv_cache_usage_perc")
    finally:
        engine.shutdown()


@pytest.mark.parametrize("own_process", [False, True])
def test_no_block_is_in_use_after_the_abort_of_the_last_request(own_process: bool) -> None:
    before, after = usage_after_abort(own_process=own_process)
    assert before > 0 and after == 0


def test_blocks_that_an_abort_leaves_behind_stay_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVManager, "forget", lambda *_: None)
    before, after = usage_after_abort(own_process=False)
    assert after == before
