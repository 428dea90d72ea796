"""The server of lesson 15: streams, rejects in time, and frees what clients leave behind."""

import asyncio
import json

from engine import EngineArgs
from engine.async_llm import AsyncLLM
from lessons.l15_serving.solution import AdmissionControl, SSEParser
from lessons.mine.server import start

CHAT = "/v1/chat/completions"
ASKED = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12, "temperature": 0}


async def ask(port, method, path, body=None, hang_up=False):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = b"" if body is None else json.dumps(body).encode()
    writer.write(f"{method} {path} HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    found = await (reader.readline() if hang_up else reader.read())
    writer.close()
    head, _, rest = found.partition(b"\r\n\r\n")
    return int(head.split()[1]), rest


def serving(client, max_running=2, max_waiting=2):
    """Run client(port, llm, admission) against a server on the loopback interface."""

    async def run():
        with AsyncLLM(EngineArgs.create(model="shop", max_num_seqs=4, num_gpu_blocks_override=256)) as llm:
            admission = AdmissionControl(max_running, max_waiting)
            async with await start(llm, admission) as server:
                await client(server.sockets[0].getsockname()[1], llm, admission)

    asyncio.run(run())


def test_a_stream_has_the_text_of_a_plain_answer():
    async def client(port, llm, admission):
        _, plain = await ask(port, "POST", CHAT, ASKED)
        _, stream = await ask(port, "POST", CHAT, {**ASKED, "stream": True})
        *events, last = SSEParser().feed(stream)
        text = "".join(json.loads(event)["choices"][0]["delta"]["content"] for event in events)
        assert last == "[DONE]"
        assert text == json.loads(plain)["choices"][0]["message"]["content"]

    serving(client)


def test_requests_beyond_the_queue_are_rejected():
    async def client(port, llm, admission):
        answers = await asyncio.gather(*(ask(port, "POST", CHAT, ASKED) for _ in range(7)))
        statuses = sorted(status for status, _ in answers)
        assert statuses == [200] * 4 + [429] * 3

    serving(client)


def test_wrong_requests_get_an_error_and_hold_nothing():
    async def client(port, llm, admission):
        long = {**ASKED, "messages": [{"role": "user", "content": "a " * 9000}]}
        for status, body in ((400, {"x": 1}), (400, long), (400, []), (400, {**ASKED, "temperature": -1})):
            assert (await ask(port, "POST", CHAT, body))[0] == status
        assert (await ask(port, "GET", "/nothing"))[0] == 404
        assert (admission.num_running, admission.num_waiting) == (0, 0)

    serving(client)


def test_clients_that_hang_up_leave_no_slot_and_no_block_behind():
    async def client(port, llm, admission):
        endless = {**ASKED, "max_tokens": 400, "stream": True}
        for _ in range(6):
            await ask(port, "POST", CHAT, endless, hang_up=True)
        for _ in range(100):
            if not admission.num_running:
                break
            await asyncio.sleep(0.05)
        assert (admission.num_running, admission.num_waiting) == (0, 0)
        await llm.reset_prefix_cache()
        assert llm.llm_engine.engine_core.scheduler.kv.pool.num_used == 0

    serving(client, max_running=6)
