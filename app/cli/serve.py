"""`prep serve`: a model behind an OpenAI-compatible HTTP API."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from app.cli import terminal
from app.cli.engine_options import engine_options
from app.cli.options import argument, option, option_groups

KEY_VARIABLE = "PREP_API_KEY"
HELLO = [{"role": "user", "content": "Hello"}]
FOR_SHOP = [
    {"role": "system", "content": "Silver Harbor costs 640 yen."},
    {"role": "user", "content": "How much is Silver Harbor?"},
]
"""`shop` has learnt to answer from the notes in the system message, and knows little else."""


@dataclass(frozen=True)
class Server:
    """Options of the server; names are those of `vllm serve`."""

    host: Annotated[str, option("Address to listen on; 0.0.0.0: reachable from other machines.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, option("Port; 0: a free one.", min=0, max=65535)] = 8000
    api_key: Annotated[
        list[str] | None, option(f"Key that clients must send; repeatable. Also: {KEY_VARIABLE}.")
    ] = None
    served_model_name: Annotated[
        list[str] | None, option("Name of the model in requests; repeatable. Default: MODEL.")
    ] = None
    lora_modules: Annotated[list[str] | None, option("NAME=PATH of an adapter to load; repeatable.")] = None
    lora_registry: Annotated[
        Path | None, option("File of prep adapter; the promoted versions are served, also later ones.")
    ] = None
    max_num_queued_reqs: Annotated[
        int | None, option("Completions that may wait; more get status 429.", min=0)
    ] = None
    request_timeout: Annotated[
        float | None, option("Seconds for one request; then it ends with status 408.", min=0.001)
    ] = None
    drain_timeout: Annotated[
        float, option("Seconds for running requests to finish after SIGTERM.", min=0)
    ] = 30.0
    max_body_mib: Annotated[
        float, option("Largest body of a request in MiB; a larger one gets status 413.", min=0.001)
    ] = 8.0
    max_completion_prompts: Annotated[
        int, option("Prompts in one request for completions; more get status 400.", min=1)
    ] = 1024
    stats_interval: Annotated[float, option("Seconds between two lines of statistics; 0: none.", min=0)] = (
        10.0
    )
    request_log: Annotated[
        Path | None, option("File that gets one JSON line per request; prep load --replay reads it.")
    ] = None
    otlp_traces_endpoint: Annotated[
        str | None, option("Address of an OpenTelemetry collector; it gets one span per request.")
    ] = None
    enable_sleep_mode: Annotated[
        bool, option("Serve /sleep and /wake_up, which free and reload the engine's memory.")
    ] = False
    log_prompts: Annotated[bool, option("Write prompts to the request log.")] = False
    enable_prompt_tokens_details: Annotated[bool, option("Report cached prompt tokens in the usage.")] = False
    tool_call_parser: Annotated[
        str,
        option("Format of the model's tool calls: hermes, llama3_json, llama4_json, mistral or pythonic."),
    ] = "hermes"


@engine_options
@option_groups
def serve(
    model: Annotated[
        str, argument("A shipped model (prep zoo list), a folder, or a Hugging Face id.")
    ] = "shop",
    server: Server = Server(),  # noqa: B008 - frozen
    *,
    engine: dict[str, Any],
) -> None:
    """Serve a model over HTTP as OpenAI and vLLM do, until Ctrl-C or SIGTERM.

    Running requests finish before the server ends; a second signal ends it at once.

    \b
    Examples:
      prep serve shop
      prep serve shop --port 8001 --api-key secret --max-num-queued-reqs 64
      prep serve shop --request-log requests.jsonl
      prep serve shop --enable-lora --lora-modules recommend=shop-lora-recommend
    """
    if engine["skip_tokenizer_init"]:
        raise terminal.Problem(
            "a server answers with text: it needs the tokenizer", "leave out --skip-tokenizer-init"
        )
    _check(server)
    from app.cli.doctor import version_of
    from engine.config import EngineArgs
    from engine.server import run

    keys = server.api_key or [key for key in [os.environ.get(KEY_VARIABLE)] if key]
    adapters = [_name_and_path(module) for module in server.lora_modules or []]
    if adapters or server.lora_registry is not None:
        engine = {**engine, "enable_lora": True}
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    args = run.ServerArgs(
        host=server.host,
        port=server.port,
        api_keys=keys,
        served_model_name=server.served_model_name or [],
        lora_modules=adapters,
        lora_registry=server.lora_registry,
        max_num_queued_reqs=server.max_num_queued_reqs,
        request_timeout_s=server.request_timeout,
        drain_timeout_s=server.drain_timeout,
        max_body_mib=server.max_body_mib,
        max_completion_prompts=server.max_completion_prompts,
        stats_interval_s=server.stats_interval,
        request_log=server.request_log,
        otlp_traces_endpoint=server.otlp_traces_endpoint,
        enable_sleep_mode=server.enable_sleep_mode,
        log_prompts=server.log_prompts,
        enable_prompt_tokens_details=server.enable_prompt_tokens_details,
        tool_call_parser=server.tool_call_parser,
        version=version_of("prep-workbench") or "0.1.0",
    )
    terminal.note(f"[dim]loading {terminal.literal(model)}[/]")
    try:
        is_sound = run.serve(
            model,
            EngineArgs.create(model=model, **engine),
            args,
            lambda port: _tell(model, server, port, keys),
        )
    except OSError as error:
        why = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
        raise terminal.Problem(
            f"cannot listen on {server.host}:{server.port}: {why}",
            "prep serve --port PORT   uses another port; 0 takes a free one",
            code=terminal.ENVIRONMENT,
        ) from None
    if not is_sound:
        raise terminal.Problem(
            "the engine died; its error is above",
            "prep serve --debug-checks   finds out more",
            code=terminal.CHECKS_FAILED,
        )
    terminal.note("stopped")


def _check(server: Server) -> None:
    """Raise a Problem for libraries that are missing, or a log that cannot be written."""
    terminal.need_libraries(
        "the server needs", ["fastapi", "uvicorn", "uvloop", "prometheus_client"], "serve", "serve"
    )
    if server.otlp_traces_endpoint is not None:
        try:
            import_module("engine.server.tracing")
        except ImportError as error:
            raise terminal.Problem(
                f"--otlp-traces-endpoint needs {error.name}, not installed here",
                "pip install -e '.[otel]'",
                code=terminal.ENVIRONMENT,
            ) from None
    if server.request_log is not None:
        try:
            server.request_log.open("a").close()
        except OSError as error:
            raise terminal.Problem(
                f"cannot write {server.request_log}: {error.strerror}", "prep serve --request-log FILE"
            ) from None


def _name_and_path(module: str) -> tuple[str, str]:
    name, separator, path = module.partition("=")
    if not (separator and name and path):
        raise terminal.Problem(f"--lora-modules {module!r} must look like NAME=PATH", "prep serve --help")
    return name, path


def _tell(model: str, server: Server, port: int, keys: list[str]) -> None:
    host = f"[{server.host}]" if ":" in server.host else server.host
    url = f"http://{host}:{port}"
    terminal.note(f"[bold]{terminal.literal(model)}[/] on {url}/v1 until Ctrl-C; metrics on {url}/metrics")
    if server.host not in ("127.0.0.1", "localhost", "::1") and not keys:
        terminal.note("[yellow]other machines can reach it without a key[/]; --api-key sets one")
    key = " -H 'Authorization: Bearer KEY'" if keys else ""
    name = (server.served_model_name or [model])[0]
    body = json.dumps({"model": name, "messages": FOR_SHOP if model == "shop" else HELLO, "temperature": 0})
    terminal.note(
        terminal.literal(
            f"try: curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'"
        )
    )
