"""Start the server and end it: warm up, listen, drain, stop.

SIGTERM or Ctrl-C   /health answers 503, new requests get 503, running ones finish; then it stops
a second one        it stops now
the engine dies     its requests end with an error, the server stops with exit code 1
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn
import uvloop
from fastapi import FastAPI

from engine.async_llm import AsyncLLM
from engine.config import ConfigError, EngineArgs
from engine.frontend.tool_parsers import check_tool_parser
from engine.sampling_params import SamplingParams
from engine.server.adapter_versions import PromotedAdapters
from engine.server.admission import Admission
from engine.server.app import create_app
from engine.server.connection import server_config
from engine.server.errors import ApiError
from engine.server.listen import listen
from engine.server.metrics import PrometheusLogger
from engine.server.models import Models
from engine.server.protocol import LoadLoRARequest
from engine.server.request_log import RequestLog
from engine.server.service import MAX_COMPLETION_PROMPTS, Service
from engine.server.stat_line import log_stats
from prep_common.memory import collect_rarely
from prep_common.stages import Stages, process_began

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerArgs:
    """Settings of the server; those of the engine are EngineArgs."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: Sequence[str] = ()
    served_model_name: Sequence[str] = ()
    """Names of the model in requests and answers; by default the one it was started with."""
    lora_modules: Sequence[tuple[str, str]] = ()
    """(name, folder) of adapters to load at the start."""
    lora_registry: Path | None = None
    """File of adapter versions; the promoted ones are served, also those that are promoted later."""
    max_num_queued_reqs: int | None = None
    request_timeout_s: float | None = None
    drain_timeout_s: float = 30.0
    max_body_mib: float = 8.0
    max_completion_prompts: int = MAX_COMPLETION_PROMPTS
    """Prompts in one request for completions."""
    enable_prompt_tokens_details: bool = False
    tool_call_parser: str = "hermes"
    """Format of the model's tool calls: a name in engine/frontend/tool_parsers."""
    stats_interval_s: float = 10.0
    """Seconds between two lines of statistics in the log; 0: none."""
    request_log: Path | None = None
    """File that gets one line per request."""
    enable_sleep_mode: bool = False
    """Offer /sleep and /wake_up."""
    otlp_traces_endpoint: str | None = None
    """Collector of OpenTelemetry spans."""
    log_prompts: bool = False
    """Write prompts to the request log."""
    version: str = "0"

    def __post_init__(self) -> None:
        check_tool_parser(self.tool_call_parser)


class DrainingServer(uvicorn.Server):
    """A server that finishes what it has begun before it ends."""

    ended: asyncio.Task[None]

    def __init__(self, app: FastAPI, service: Service, drain_timeout_s: float) -> None:
        super().__init__(server_config(app, lifespan="off", timeout_graceful_shutdown=2))
        self._service, self._drain_timeout_s = service, drain_timeout_s
        self._deadline: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; stop now if it does already."""
        if self._deadline is not None:
            self.should_exit = self.force_exit = True
            return
        self._service.admission.is_draining = True
        self._deadline = time.monotonic() + self._drain_timeout_s

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; return True to stop."""
        if await super().on_tick(counter) or self._service.llm.errored:
            return True
        is_late = self._deadline is not None and time.monotonic() > self._deadline
        return is_late or (self._deadline is not None and self._service.admission.in_flight == 0)


def serve(
    model: str, engine: EngineArgs, args: ServerArgs, ready: Callable[[int], None] = lambda port: None
) -> bool:
    """Serve until a signal. Return False if the engine died.

    ready: called with the port once requests are answered. Raises OSError if the address cannot be used, before the
    model is loaded.
    """
    stages = Stages(process_began())
    stages.end("imports")
    with listen(args.host, args.port) as listener, AsyncLLM(engine, own_process=True) as llm:
        stages.end("rest of the engine", getattr(llm.llm_engine.engine_core, "start_seconds", None))
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(model, llm, listener, args, ready, stages))


async def _serve(
    model: str,
    llm: AsyncLLM,
    listener: socket.socket,
    args: ServerArgs,
    ready: Callable[[int], None],
    stages: Stages,
) -> bool:
    async with running(model, llm, listener, args, stages=stages) as server:
        collect_rarely()
        logger.info("started in %.2f s: %s", stages.total, stages.text())
        ready(listener.getsockname()[1])
        await server.ended
    return not llm.errored


@asynccontextmanager
async def running(
    model: str,
    llm: AsyncLLM,
    listener: socket.socket,
    args: ServerArgs,
    admission: Admission | None = None,
    stages: Stages | None = None,
) -> AsyncIterator[DrainingServer]:
    """Serve in this event loop until a signal, or until the context ends. `server.ended` waits for the former.

    admission: by default at most `args.max_num_queued_reqs` wait beside those that run. stages: of the start so far.
    """
    async with building(model, llm, args, admission, stages) as (app, service):
        server = DrainingServer(app, service, args.drain_timeout_s)
        listener.listen(server.config.backlog)
        server.ended = asyncio.create_task(server.serve([listener]))
        try:
            yield server
        finally:
            server.should_exit = True
            await server.ended


@asynccontextmanager
async def building(
    model: str,
    llm: AsyncLLM,
    args: ServerArgs,
    admission: Admission | None = None,
    stages: Stages | None = None,
) -> AsyncIterator[tuple[FastAPI, Service]]:
    """Return the application over a warm engine, for this server or for another that speaks ASGI."""
    names = list(args.served_model_name) or [model]
    config = llm.llm_engine.engine_core.config
    metrics = PrometheusLogger(names[0], config)
    service = Service(
        llm,
        Models(llm, names, model),
        admission or Admission(config.scheduler.max_num_seqs, args.max_num_queued_reqs),
        timeout_s=args.request_timeout_s,
        shows_cached_tokens=args.enable_prompt_tokens_details,
        tool_call_parser=args.tool_call_parser,
        max_completion_prompts=args.max_completion_prompts,
        version=args.version,
    )
    for name, path in args.lora_modules:
        try:
            await service.models.load(LoadLoRARequest(lora_name=name, lora_path=path))
        except ApiError as error:
            raise ConfigError(f"--lora-modules {name}={path}: {error}") from None
    promoted = None
    if args.lora_registry is not None:
        promoted = PromotedAdapters(service.models, args.lora_registry)
        await promoted.load()
    await warm_up(llm)
    if stages is not None:
        stages.end("adapters and warm-up")
        metrics.tell_start(stages.seconds)
    with ExitStack() as stack:
        if promoted is not None:
            stack.callback(asyncio.create_task(promoted.follow()).cancel)
        llm.llm_engine.stat_loggers = [metrics]
        if args.request_log is not None:
            decode = service.tokenizer.decode if args.log_prompts else None
            log = RequestLog(args.request_log, names[0], config.cache.block_size, decode)
            stack.callback(log.close)
            llm.llm_engine.stat_loggers.append(log)
        if args.otlp_traces_endpoint is not None:
            from engine.server.tracing import RequestTracer  # an extra of its own

            tracer = RequestTracer(args.otlp_traces_endpoint, names[0])
            stack.callback(tracer.close)
            llm.llm_engine.stat_loggers.append(tracer)
        if every_s := args.stats_interval_s:
            stack.callback(asyncio.create_task(log_stats(metrics.registry, every_s)).cancel)
        yield (
            create_app(
                service,
                metrics,
                version=args.version,
                api_keys=args.api_keys,
                can_sleep=args.enable_sleep_mode,
                max_body_bytes=int(args.max_body_mib * (1 << 20)),
            ),
            service,
        )


async def warm_up(llm: AsyncLLM) -> None:
    """Run a prompt and some decode steps, so that the first request does not pay for the first use of each kernel."""
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
    async for _ in llm.generate({"prompt_token_ids": [0]}, params):
        pass
    await llm.reset_prefix_cache()
