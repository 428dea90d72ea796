"""`prep disagg`: real engine processes, the same tokens, exact bytes, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from app.bench.timing import spread
from app.cli import terminal
from app.cli.disagg import as_json, show
from app.disagg.engine_process import TOTALS, Ask, EngineProcess, News, Ready
from app.disagg.experiment import Load, Report, Side, check_fits, running, transfer_configs
from tests.waiting import wait_until

SMALL = [
    *("--writers", "2", "--prompts", "2", "--prompt-len", "160", "--output-len", "120", "--interval", "0.05"),
    *("--num-gpu-blocks-override", "100", "--max-model-len", "400", "--max-num-seqs", "8"),
]
PATIENCE_S = 120


def prep(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "app.cli.main", "disagg", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_load_that_does_not_fit_says_what_to_lower() -> None:
    with pytest.raises(ValueError, match="--prompt-len or --output-len"):
        check_fits(Load(1, 1, 500, 10, 0.1), Ready(64, 16, 100, 256))


def test_the_shared_folder_is_gone_when_the_run_is_over() -> None:
    with transfer_configs("shm") as configs:
        folder = Path(configs[0]["kv_connector_extra_config"]["path"])
        folder.mkdir()
        (folder / "left.kv").write_bytes(b"by an engine that was killed")
    assert not folder.exists()


def test_the_load_is_the_same_every_time() -> None:
    load = Load(2, 3, 50, 10, 0.1)
    assert load.asks(100) == load.asks(100)
    assert len({tuple(ask.prompt) for _, ask in load.asks(100)}) == 5


def test_absent_figures_are_null_in_json_and_a_dash_in_tables(capsys: pytest.CaptureFixture[str]) -> None:
    side = Side(ttft_ms=spread([0.5]), itl_ms=spread([]), pause_ms=spread([]), tokens={"writer-0": [1]})
    report = Report("shop", "shm", 64, 0, 0, 0, 0, 0, 0, True, side, side)
    terminal.print_json(as_json(report))
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert printed["colocated"]["itl_ms"]["p50"] is None
    assert printed["colocated"]["ttft_ms"]["p50"] == 500
    show(report)
    shown = capsys.readouterr().out
    assert "nan" not in shown and "500.0" in shown


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_two_processes_give_the_tokens_of_plain_engines_and_move_the_bytes_of_the_formula(
    transport: str,
) -> None:
    process = prep("--transport", transport, "--json", *SMALL)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (0, 4), errors  # 4: so small a load may show no interference
    report = json.loads(output)
    assert report["same_tokens"] and report["bytes_are_exact"]
    assert report["bytes_received"] == (2 * 144 + 2 * 16) * report["kv_bytes_per_token"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_whatever_ends_the_command_ends_its_engines(number: signal.Signals) -> None:
    process = prep("--output-len", "390", *SMALL[:6], *SMALL[8:])
    parent = psutil.Process(process.pid)

    def engines() -> list[psutil.Process]:
        return [
            c for c in parent.children(recursive=True) if "app.disagg.engine_process" in " ".join(c.cmdline())
        ]

    wait_until(lambda: len(engines()) == 2)
    children = engines()
    os.kill(process.pid, number)
    process.communicate(timeout=PATIENCE_S)
    gone, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert len(gone) == 2 and not alive
    assert not list(Path("/dev/shm").glob(f"prep-disagg-{process.pid}*"))
    assert process.returncode == (130 if number != signal.SIGKILL else -number)


@pytest.mark.slow
def test_a_prefill_process_killed_in_the_middle_of_a_transfer_costs_only_time() -> None:
    args = {"model": "shop", "skip_tokenizer_init": True, "max_model_len": 400, "num_gpu_blocks_override": 60}
    configs = [{"kv_connector": "TCPConnector", "kv_role": role} for role in ("kv_producer", "kv_consumer")]
    prompt = [20 + 7 * index % 1000 for index in range(200)]
    with running([args, *({**args, "kv_transfer_config": config} for config in configs)]) as engines:
        plain, prefill, decode = engines
        for engine in engines:
            engine.receive()
        plain.write(Ask("a", prompt, 8))
        prefill.write(Ask("a", prompt, 1, {"do_remote_decode": True}))
        params = finished(prefill)[-1].kv_transfer_params
        assert params is not None
        stopped = psutil.Process(prefill.pid)
        stopped.suspend()  # the kernel still takes connections for it
        decode.write(Ask("a", prompt, 8, params))
        reader = psutil.Process(decode.pid)
        port = params["remote_port"]
        wait_until(lambda: any(c.raddr and c.raddr.port == port for c in reader.net_connections()))
        stopped.kill()
        assert tokens(finished(decode)) == tokens(finished(plain))
        decode.write(TOTALS)
        assert decode.receive()["num_kv_load_failures"] == 1


def finished(engine: EngineProcess) -> list[News]:
    """All there is to hear of an engine's only request."""
    news: list[News] = []
    while not news or not news[-1].finished:
        news.append(engine.receive())
    return news


def tokens(news: list[News]) -> list[int]:
    return [token for item in news for token in item.token_ids]
