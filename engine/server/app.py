"""The routes of the server. Handlers are in chat.py and completions.py.

    POST /v1/chat/completions  /v1/completions  /tokenize  /detokenize
    GET  /v1/models  /health  /ping  /version  /metrics
    POST /v1/load_lora_adapter  /v1/unload_lora_adapter  /reset_prefix_cache
    POST /sleep  /wake_up, GET /is_sleeping        with --enable-sleep-mode

Source: vLLM entrypoints/openai/api_server.py and entrypoints/serve.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException as ParsingError
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from engine.core.errors import EngineDeadError
from engine.server import chat, completions, text
from engine.server.bodies import parse
from engine.server.connection import CLIENT_LEFT, until_hang_up
from engine.server.errors import TYPES, ApiError, api_error
from engine.server.metrics import PrometheusLogger
from engine.server.middleware import Authenticate, BodyLimit, CountResponses, HeadLimit, RequestId
from engine.server.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    LoadLoRARequest,
    TokenizeChatRequest,
    TokenizeRequest,
    UnloadLoRARequest,
)
from engine.server.service import Service, encoded, events
from prep_common.complaints import complaints, path_of

logger = logging.getLogger(__name__)

ABSENT = {
    "/v1/responses": "use /v1/chat/completions",
    "/v1/messages": "use /v1/chat/completions",
    "/v1/embeddings": "LLM.embed returns embeddings offline",
}
"""Paths that clients of vLLM's server try -> what to do instead."""
MOST_ERRORS = 5
"""Validation errors that one answer lists."""


class JsonRoute(APIRoute):
    """A route whose body is read by `parse`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_JsonRequest(request.scope, request.receive))

        return handle


class _JsonRequest(Request):
    async def json(self) -> Any:
        try:
            return parse(await self.body())
        except ValueError as error:
            raise ParsingError(400, str(error)) from None  # any other kind would lose its words


def create_app(
    service: Service,
    metrics: PrometheusLogger,
    *,
    version: str,
    api_keys: Sequence[str] = (),
    max_body_bytes: int = 8 << 20,
    docs: bool = True,
    can_sleep: bool = False,
) -> FastAPI:
    """Return the application. Without api_keys every request is served."""
    app = FastAPI(title="prep", version=version, docs_url="/docs" if docs else None, redoc_url=None)
    app.router.route_class = JsonRoute
    app.add_middleware(BodyLimit, limit=max_body_bytes)
    if api_keys:
        app.add_middleware(Authenticate, keys=api_keys)
    app.add_middleware(HeadLimit)
    app.add_middleware(CountResponses, counter=metrics.responses)
    app.add_middleware(RequestId)
    _add_errors(app, service, metrics)
    _add_generation(app, service)
    _add_text(app, service)
    _add_state(app, service, metrics, version)
    _add_administration(app, service)
    if can_sleep:
        _add_sleep(app, service, metrics)
    return app


def _add_errors(app: FastAPI, service: Service, metrics: PrometheusLogger) -> None:
    def answer(error: ApiError) -> JSONResponse:
        if error.status == 429:
            metrics.reject(service.models.names[0])
        return JSONResponse(error.body(), error.status, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        if "json" not in (kind := request.headers.get("content-type", "")):
            return answer(
                ApiError(
                    400, f"send the body as Content-Type: application/json, not {kind or 'without a type'}"
                )
            )
        return answer(_of_validation(error))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        kind = TYPES.get(error.status_code, "BadRequestError")
        return answer(ApiError(error.status_code, str(error.detail), type=kind))

    @app.exception_handler(Exception)
    async def other(_: Request, error: Exception) -> JSONResponse:
        refusal = api_error(error)
        if refusal.status == 500 and not isinstance(error, EngineDeadError):
            logger.error("a request failed", exc_info=error)
        return answer(refusal)

    for kind in (
        ApiError,
        ValueError,
        TimeoutError,
        EngineDeadError,
    ):  # without a traceback in the log
        app.add_exception_handler(kind, other)


def _add_generation(app: FastAPI, service: Service) -> None:
    async def begin(prepare: Callable[[], chat.Chat | completions.Completion], request: Request) -> Any:
        """Return a full answer, or the first chunk of a stream with the others."""
        service.admission.check(1)  # before any work
        prepared = await service.prepare(len(await request.body()), prepare)
        if not prepared.request.stream:
            return Response(await encoded(await prepared.full()), media_type="application/json")
        chunks = prepared.stream()
        try:
            return await anext(chunks), chunks  # an error before it has a status of its own
        except BaseException:
            await chunks.aclose()
            raise

    async def run(prepare: Callable[[], chat.Chat | completions.Completion], request: Request) -> Response:
        begun = await until_hang_up(request, begin(prepare, request))
        if begun is None:
            return Response(status_code=CLIENT_LEFT)
        return (
            begun
            if isinstance(begun, Response)
            else StreamingResponse(events(*begun), media_type="text/event-stream")
        )

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatCompletionRequest, request: Request) -> Response:
        return await run(partial(chat.prepare, service, body, request.headers), request)

    @app.post("/v1/completions")
    async def text_completions(body: CompletionRequest, request: Request) -> Response:
        return await run(partial(completions.prepare, service, body, request.headers), request)

    def absent(path: str, instead: str) -> None:
        @app.post(path, include_in_schema=False)
        async def refuse() -> Response:
            raise ApiError(404, f"POST {path} is not served here; {instead}")

    for path, instead in ABSENT.items():
        absent(path, instead)


def _add_text(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest | TokenizeChatRequest, request: Request) -> Response:
        work = partial(text.tokenize, service, body)
        return await service.prepare(len(await request.body()), work)

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        work = partial(text.detokenize, service, body)
        return await service.prepare(len(await request.body()), work)


def _add_state(app: FastAPI, service: Service, metrics: PrometheusLogger, version: str) -> None:
    async def health() -> Response:
        """200 while requests are accepted."""
        return Response(status_code=503 if service.llm.errored or service.admission.is_draining else 200)

    app.get("/health")(health)
    app.api_route("/ping", methods=["GET", "POST"])(health)

    @app.get("/version")
    async def show_version() -> dict[str, str]:
        return {"version": version}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return service.models.cards(service.max_model_len)

    @app.get("/metrics")
    def show_metrics() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _add_administration(app: FastAPI, service: Service) -> None:
    @app.post("/v1/load_lora_adapter")
    async def load_lora_adapter(body: LoadLoRARequest) -> Response:
        return Response(await service.models.load(body))

    @app.post("/v1/unload_lora_adapter")
    async def unload_lora_adapter(body: UnloadLoRARequest) -> Response:
        return Response(await service.models.unload(body.lora_name))

    @app.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> dict[str, bool]:
        return {"success": await service.llm.reset_prefix_cache()}


def _add_sleep(app: FastAPI, service: Service, metrics: PrometheusLogger) -> None:
    @app.post("/sleep")
    async def sleep(level: int = 1, mode: Literal["abort", "wait"] = "abort") -> dict[str, Any]:
        if level not in (1, 2):
            raise ApiError(400, f"level must be 1 or 2, got {level}", param="level")
        service.admission.is_asleep = True
        try:
            async with service.models.submitting:
                pass  # a request that is being submitted is aborted or waited for as a whole
            await service.llm.sleep(level, mode)
        finally:
            service.admission.is_asleep = service.llm.is_sleeping
        metrics.tell_sleep(level)
        return {"status": "sleeping", "level": level}

    @app.post("/wake_up")
    async def wake_up() -> dict[str, Any]:
        await service.llm.wake_up()
        service.admission.is_asleep = False
        metrics.tell_sleep(0)
        return {"status": "awake", "tags": None}

    @app.get("/is_sleeping")
    async def is_sleeping() -> dict[str, bool]:
        return {"is_sleeping": service.llm.is_sleeping}


def _of_validation(error: RequestValidationError) -> ApiError:
    """Return one error for all that is wrong with a body."""
    problems = complaints(error.errors(), most=MOST_ERRORS)
    return ApiError(
        400,
        "; ".join(problem.text for problem in problems),
        param=path_of(problems[0].location) or "body",
    )
