"""The server of lesson 15: streams, rejects in time, and frees what clients leave behind."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import httpx
import pytest
from typer.testing import CliRunner

from app.cli.main import app
from engine import EngineArgs
from engine.async_llm import AsyncLLM
from lessons.l15_serving.solution import AdmissionControl, SSEParser
from lessons.mine.server import serving
from prep_common.child_process import ROOT
from tests.waiting import until

CHAT = "/v1/chat/completions"
ASKED = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0}


def served(use, max_running=2, max_waiting=2):
    """Run use(client, llm, admission) against a server on the loopback interface."""

    async def run():
        with AsyncLLM(EngineArgs.create(model="shop", max_num_seqs=4, num_gpu_blocks_override=256)) as llm:
            admission = AdmissionControl(max_running, max_waiting)
            async with serving(llm, admission) as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
                await use(client, llm, admission)

    asyncio.run(run())


def test_a_stream_has_the_text_of_a_plain_answer():
    async def use(client, llm, admission):
        plain = (await client.post(CHAT, json=ASKED)).json()
        stream = (await client.post(CHAT, json={**ASKED, "stream": True})).content
        *events, last = SSEParser().feed(stream)
        text = "".join(json.loads(event)["choices"][0]["delta"].get("content", "") for event in events)
        assert last == "[DONE]"
        assert text == plain["choices"][0]["message"]["content"]

    served(use)


def test_requests_beyond_the_queue_are_rejected():
    async def use(client, llm, admission):
        answers = await asyncio.gather(*(client.post(CHAT, json=ASKED) for _ in range(7)))
        assert sorted(answer.status_code for answer in answers) == [200] * 4 + [429] * 3
        assert (
            'vllm:admission_rejections_total{model_name="shop",reason="max_num_queued_reqs"} 3.0'
            in (await client.get("/metrics")).text
        )

    served(use)


def test_wrong_requests_get_an_error_and_hold_nothing():
    async def use(client, llm, admission):
        long = {**ASKED, "messages": [{"role": "user", "content": "a " * 9000}]}
        for status, body in ((400, {"x": 1}), (400, long), (400, []), (400, {**ASKED, "temperature": -1})):
            assert (await client.post(CHAT, json=body)).status_code == status
        assert (await client.get("/nothing")).status_code == 404
        assert (admission.num_running, admission.num_waiting) == (0, 0)

    served(use)


def test_clients_that_hang_up_leave_no_slot_and_no_block_behind():
    async def use(client, llm, admission):
        for _ in range(6):
            endless = {**ASKED, "max_tokens": 400, "stream": True, "ignore_eos": True}
            async with client.stream("POST", CHAT, json=endless) as response:
                await anext(response.aiter_lines())
        await until(lambda: not admission.num_running)
        assert (admission.num_running, admission.num_waiting) == (0, 0)
        await llm.reset_prefix_cache()
        assert llm.llm_engine.engine_core.scheduler.kv.pool.num_used == 0

    served(use, max_running=6)


@pytest.mark.slow
def test_prep_mine_serve_answers_and_ends_at_ctrl_c_and_a_second_one_names_the_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "app.cli.main", "mine", "serve", "--solutions", "--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        said = next(line for line in server.stderr if "listens on" in line)
        url = re.search(r"http://\S+", said)[0]
        request = urllib.request.Request(
            url, json.dumps(ASKED).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"]
        second = CliRunner().invoke(app, command[3:])
        assert second.exit_code == 3
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in second.output
        assert "listens" not in second.output and "Traceback" not in second.output
        server.send_signal(signal.SIGINT)
        rest = server.communicate(timeout=20)[1]
        assert server.returncode == 0 and "stopped" in rest and "Traceback" not in rest
    finally:
        server.kill()
