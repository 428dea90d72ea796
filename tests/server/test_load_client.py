"""`prep load`: what it sends, what it counts, how it fails."""

from __future__ import annotations

import json
import subprocess
import sys

import httpx
import pytest
from typer.testing import CliRunner

from app.cli.main import app
from engine.server.load_client import LOWEST_ID, Objective, Sent, prompt_ids
from engine.sim.workload import SimRequest
from tests.server.conftest import Start


def test_prompts_share_what_the_workload_shares() -> None:
    first, second = (SimRequest(index, 0.0, 60, 8, prefix_id=3, prefix_len=40) for index in (0, 1))
    one, two = prompt_ids(first, 1000), prompt_ids(second, 1000)
    assert one[:40] == two[:40] and one[40:] != two[40:]
    assert min(one + two) >= LOWEST_ID and max(one + two) < 1000
    assert len(set(one)) > 40, "tokens of a prompt differ"


def test_a_request_is_good_within_all_limits() -> None:
    sent = Sent(due=1.0, num_prompt_tokens=5, first=1.2, last=2.2, num_tokens=11)
    assert (sent.ttft, sent.tpot, sent.e2e) == pytest.approx((0.2, 0.1, 1.2))
    assert Objective(ttft=0.25, tpot=0.11, e2e=1.3).is_met(sent)
    for limits in ({"ttft": 0.1}, {"tpot": 0.09}, {"e2e": 1.1}):
        assert not Objective(**limits).is_met(sent)
    assert not Objective().is_set


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["127.0.0.1:1"], 3, "no server at"),
        (["http://127.0.0.1:1", "--prompt", "x"], 2, "expected a number of tokens"),
        (["http://127.0.0.1:1", "--arrivals", "x"], 2, "poisson, gamma or constant"),
        (["http://127.0.0.1:1", "--replay", "/nowhere"], 2, "/nowhere"),
    ],
)
def test_what_cannot_work_is_a_sentence(arguments: list[str], code: int, says: str) -> None:
    result = CliRunner().invoke(app, ["load", "--duration", "1", *arguments])
    assert result.exit_code == code, result.output
    assert says in result.output + str(result.stderr) and "Traceback" not in result.output


@pytest.mark.slow
def test_the_report_equals_the_servers_metrics(start: Start) -> None:
    served = start("--max-num-queued-reqs", "0", "--max-num-seqs", "4", "--num-gpu-blocks-override", "512")
    command = [sys.executable, "-m", "app.cli.main", "load", served.url, "--json"]
    calm = subprocess.run(
        [*command, "--rate", "4", "--duration", "3", "--arrivals", "constant", "--output", "6", "--slo-e2e", "60000"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert calm.returncode == 0, calm.stderr
    report = json.loads(calm.stdout)
    assert report["num_sent"] == report["num_done"] == 12 and report["errors"] == {}
    assert report["output_tokens"] == 72 and report["good_share"] == 1.0
    lines = httpx.get(f"{served.url}/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    labels = '{engine="0",model_name="shop"}'
    assert float(values[f"vllm:generation_tokens_total{labels}"]) == 72
    assert float(values[f"vllm:prompt_tokens_total{labels}"]) == report["prompt_tokens"]
    crowd = subprocess.run(
        [*command, "--rate", "200", "--duration", "0.5", "--output", "60"], capture_output=True, text=True
    )
    report = json.loads(crowd.stdout)
    assert crowd.returncode == 1 and report["errors"].keys() == {"HTTP 429"}
    assert report["num_done"] + report["errors"]["HTTP 429"] == 100
