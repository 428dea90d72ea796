"""A server small enough to read: the engine behind HTTP, the learner's admission control in front of it.

    POST /v1/chat/completions    messages, max_tokens, temperature, seed, stop, stream -> JSON or server-sent events
    GET  /health, /metrics       /metrics: some of vLLM's metrics, for Prometheus

Each connection serves one request. A client that hangs up aborts its request.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import count
from typing import Any, TypeAlias

from engine.async_llm import AsyncLLM
from engine.config import EngineArgs
from engine.sampling_params import RequestOutputKind, SamplingParams

MAX_BODY = 1 << 20
SAMPLING = ("max_tokens", "temperature", "seed", "stop")
Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter


class Server:
    """Handles connections. `admission` decides who runs, waits or is rejected (exercise 15.1)."""

    def __init__(self, llm: AsyncLLM, admission: Any) -> None:
        self.llm, self.admission = llm, admission
        self.counts: Counter[str] = Counter()
        self._ids = (f"chatcmpl-{number}" for number in count())
        self._turns: dict[str, asyncio.Event] = {}

    async def handle(self, reader: Reader, writer: Writer) -> None:
        """Serve one connection."""
        try:
            async with asyncio.timeout(30):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                fields = {line.partition(":")[0].lower(): line.partition(":")[2] for line in head[1:]}
                body = await reader.readexactly(min(int(fields.get("content-length") or 0), MAX_BODY))
            match head[0].split()[:2]:
                case ["POST", "/v1/chat/completions"]:
                    await self._chat(body, reader, writer)
                case ["GET", "/health"]:
                    respond(writer, "503 Service Unavailable" if self.llm.errored else "200 OK", "{}")
                case ["GET", "/metrics"]:
                    respond(writer, "200 OK", self.metrics(), "text/plain; version=0.0.4")
                case _:
                    respond(writer, "404 Not Found", json.dumps({"error": head[0]}))
            await writer.drain()
        except (OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError):
            pass  # not a request, or the client has left
        finally:
            writer.close()

    async def _chat(self, body: bytes, reader: Reader, writer: Writer) -> None:
        try:
            asked = json.loads(body)
            prompt = self.llm.llm_engine.input_processor.chat_prompt(asked["messages"])
            chosen = {name: asked[name] for name in SAMPLING if name in asked}
            params = SamplingParams(output_kind=RequestOutputKind.DELTA, **chosen)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return respond(
                writer, "400 Bad Request", json.dumps({"error": f"{type(error).__name__}: {error}"})
            )
        request_id, is_stream = next(self._ids), bool(asked.get("stream"))
        verdict = self.admission.offer(request_id)
        if verdict == "reject":
            self.counts["rejected"] += 1
            return respond(writer, "429 Too Many Requests", json.dumps({"error": "the queue is full"}))
        turn = self._turns[request_id] = asyncio.Event()
        if verdict == "run":
            turn.set()
        answer = asyncio.create_task(self._answer(request_id, prompt, params, is_stream, writer))
        hang_up = asyncio.create_task(reader.read(1))
        await asyncio.wait((answer, hang_up), return_when=asyncio.FIRST_COMPLETED)
        answer.cancel(), hang_up.cancel()
        outcome, _ = await asyncio.gather(answer, hang_up, return_exceptions=True)
        if isinstance(outcome, ValueError):  # rejected by the engine: the prompt is too long, for example
            respond(writer, "400 Bad Request", json.dumps({"error": str(outcome)}))

    async def _answer(
        self, request_id: str, prompt: Any, params: Any, is_stream: bool, writer: Writer
    ) -> None:
        """Wait for a slot, generate, and pass the slot on, whatever happens."""
        outputs: Any = self.llm.generate(prompt, params, request_id)
        text, is_finished, is_open = "", False, False
        try:
            await self._turns[request_id].wait()
            async for output in outputs:
                [delta], is_finished = output.outputs, output.finished
                self.counts["tokens"] += len(delta.token_ids)
                text += delta.text
                if is_stream:
                    if not is_open:
                        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
                        is_open = True
                    writer.write(f"data: {reply(request_id, 'delta', delta.text, delta)}\n\n".encode())
                    await writer.drain()
            if is_stream:
                writer.write(b"data: [DONE]\n\n")
            else:
                respond(writer, "200 OK", reply(request_id, "message", text, delta))
        finally:
            await outputs.aclose()
            del self._turns[request_id]
            following = self.admission.finish(request_id) if is_finished else self.admission.abort(request_id)
            if following is not None:
                self._turns[following].set()

    def metrics(self) -> str:
        """Return the metrics in Prometheus's text format."""
        core: Any = self.llm.llm_engine.engine_core
        scheduler = core.scheduler
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        queued = sum(not turn.is_set() for turn in self._turns.values())
        values = {
            "vllm:num_requests_running": ("gauge", running),
            "vllm:num_requests_waiting": ("gauge", waiting + queued),
            "vllm:kv_cache_usage_perc": ("gauge", scheduler.kv.usage),
            "vllm:generation_tokens_total": ("counter", self.counts["tokens"]),
            "prep:requests_rejected_total": ("counter", self.counts["rejected"]),
        }
        return "".join(f"# TYPE {name} {kind}\n{name} {value}\n" for name, (kind, value) in values.items())


def reply(request_id: str, part: str, text: str, completion: Any) -> str:
    """Return an object of OpenAI's chat API; part: "message" or "delta"."""
    choice = {
        "index": 0,
        part: {"role": "assistant", "content": text},
        "finish_reason": completion.finish_reason,
    }
    kind = "chat.completion" if part == "message" else "chat.completion.chunk"
    return json.dumps({"id": request_id, "object": kind, "choices": [choice]})


def respond(writer: Writer, status: str, body: str, kind: str = "application/json") -> None:
    retry = "Retry-After: 1\r\n" if status.startswith("429") else ""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body.encode())}\r\n{retry}\r\n"
    writer.write(head.encode() + body.encode())


async def start(llm: AsyncLLM, admission: Any, host: str = "127.0.0.1", port: int = 0) -> asyncio.Server:
    """Listen; port 0 takes a free one (`server.sockets[0].getsockname()[1]`)."""
    return await asyncio.start_server(Server(llm, admission).handle, host, port)


def serve(
    llm_args: dict[str, Any],
    admission_class: Any,
    host: str = "127.0.0.1",
    port: int = 8000,
    max_waiting: int = 64,
) -> None:
    """Serve until Ctrl-C. As many requests run as the engine has rows (max_num_seqs), max_waiting wait."""

    async def forever() -> None:
        with AsyncLLM(EngineArgs.create(**llm_args)) as llm:
            core: Any = llm.llm_engine.engine_core
            admission = admission_class(core.config.scheduler.max_num_seqs, max_waiting)
            async with await start(llm, admission, host, port) as server:
                await server.serve_forever()

    asyncio.run(forever())
