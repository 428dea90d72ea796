"""Send the bodies of `http_bodies.py` to two servers and list where their answers differ.

    vllm serve engine/zoo/models/shop --served-model-name shop --port 8901 --max-model-len 2048 --dtype float32 \
        --enforce-eager --enable-auto-tool-choice --tool-call-parser hermes         (in vLLM's environment)
    prep serve shop --port 8902 --max-model-len 2048
    python tests/peers/http_parity.py http://127.0.0.1:8902 http://127.0.0.1:8901

Compared: the status's class; for answers the names and types of all fields, finish reasons, texts of greedy answers
and usage; for streams the same over all chunks. Exit code 1 if something differs that is not listed in KNOWN.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import httpx
from http_bodies import Body, bodies

from engine.server.answers import EventStream

OWN_PATHS = "errors have OpenAI's shape on every path; FastAPI's own shape there"
OWN_CALLS = "<tool_call> is in the prompt of a forced call and no part of the answer, so usage differs"
WHITESPACE = "whitespace in JSON is bounded here, so that the answer ends; vLLM's runs into max_tokens"
EXTENSIONS = "refused here, where no extension reads it; without one vLLM ignores it"
KNOWN = {
    "/v1/completions vllm_xargs": EXTENSIONS,
    "/v1/chat/completions vllm_xargs": EXTENSIONS,
    "/v1/completions structured json": WHITESPACE,
    "/v1/completions response_format schema": WHITESPACE,
    "/v1/chat/completions body deep": OWN_PATHS,
    "/v1/nowhere nowhere": OWN_PATHS,
    "/v1/embeddings embeddings": OWN_PATHS,
    "/v1/chat/completions tools required": OWN_CALLS,
    "/v1/chat/completions tools named": OWN_CALLS,
    "/v1/chat/completions tools named stream": "vLLM adds content=null to a chunk of a named call",
    "/v1/chat/completions stream with continuous usage": "vLLM adds completion_tokens_details=null to some chunks",
    "/v1/completions echo stream": "vLLM sends prompt_token_ids unasked",
}
"""Path and name of a body -> why the answers differ."""
IGNORED = {".error.param: str", ".error.param: null", ".choices[].finish_reason: null"}
"""These are not compared: ours names more fields in errors; a stream that is read late has fewer chunks."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ours")
    parser.add_argument("theirs")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = []
    for body in bodies():
        ours, theirs = (seen(url, body) for url in (args.ours, args.theirs))
        if wrong := {key: (ours[key], theirs[key]) for key in ours if ours[key] != theirs[key]}:
            found.append((f"{body.path} {body.name}", wrong))
    unknown = [(name, wrong) for name, wrong in found if name not in KNOWN]
    for name, wrong in unknown:
        print(name)
        for key, (mine, other) in wrong.items():
            print(f"    {key}: ours {shortened(mine, other)}; theirs {shortened(other, mine)}")
    same = len(bodies()) - len(found)
    print(
        f"{len(bodies())} bodies: {same} alike, {len(found) - len(unknown)} known differences, {len(unknown)} others"
    )
    sys.exit(bool(unknown))


def seen(url: str, body: Body) -> dict[str, Any]:
    """Return what the comparison sees of an answer."""
    content = body.json if isinstance(body.json, str) else json.dumps(body.json)
    headers = {"Content-Type": "application/json"}
    try:
        answer = httpx.post(url + body.path, content=content, headers=headers, timeout=60)
    except httpx.HTTPError as error:
        return {"status": type(error).__name__}
    found: dict[str, Any] = {"status": answer.status_code // 100, "text": "", "usage": None}
    if answer.headers.get("content-type", "").startswith("text/event-stream"):
        stream = EventStream(body.path)
        parts = [event.content for event in stream.feed(answer.content) if event.content is not None]
        found["done"] = stream.is_done
    else:
        try:
            parts = [answer.json()]
        except ValueError:
            parts = []
        found["done"] = None
    if any(isinstance(part, dict) and "error" in part for part in parts):
        found["status"] = 4 if str(error_code(parts)).startswith("4") else 5
    names = set().union(*(fields(part) for part in parts))
    found["fields"] = sorted(names - IGNORED)
    all_choices = [each for part in parts for each in choices(part)]
    found["reasons"] = sorted(
        choice["finish_reason"] for choice in all_choices if choice.get("finish_reason")
    )
    if found["status"] == 2 and isinstance(body.json, dict) and body.json.get("temperature") == 0:
        found["text"] = "".join(text_of(choice) for choice in all_choices if choice.get("index") == 0)
    for part in parts:
        if isinstance(part, dict) and part.get("usage"):
            found["usage"] = {name: value for name, value in part["usage"].items() if isinstance(value, int)}
    return found


def error_code(parts: list[Any]) -> Any:
    return next(part["error"].get("code") for part in parts if "error" in part)


def choices(part: Any) -> list[Any]:
    return part.get("choices", []) if isinstance(part, dict) else []


def text_of(choice: dict[str, Any]) -> str:
    return choice.get("text") or choice.get("delta", choice.get("message", {})).get("content") or ""


def fields(value: Any, path: str = "") -> set[str]:
    """Names of all fields with the types of their values; numbers in an object's names do not count."""
    if isinstance(value, dict):
        inner = (
            fields(each, f"{path}.{'#' if name.lstrip('-').isdigit() else name}")
            for name, each in value.items()
        )
        return set().union({path or "."}, *inner)
    if isinstance(value, list):
        return set().union({f"{path}[]"}, *(fields(each, f"{path}[]") for each in value))
    kinds = {type(None): "null", int: "number", float: "number"}
    return {f"{path}: {kinds.get(type(value), type(value).__name__)}"}


def shortened(mine: Any, other: Any) -> str:
    """Return what only one side has, of lists; else the value."""
    if isinstance(mine, list) and isinstance(other, list) and mine and isinstance(mine[0], str):
        mine = [each for each in mine if each not in other]
    text = repr(mine)
    return text if len(text) < 220 else text[:220] + "…"


if __name__ == "__main__":
    main()
