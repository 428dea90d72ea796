"""One call to an OpenAI-compatible chat endpoint, without a client library.

No text is sent unless a learner has configured a judge. The key is read from PREP_JUDGE_API_KEY, never stored, and
never sent unencrypted to another machine.
"""

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from engine.server.answers import body_fault, json_object

KEY_VARIABLE = "PREP_JUDGE_API_KEY"
MAX_BYTES = 1 << 20
LOCAL = ("localhost", "127.0.0.1", "::1")


class JudgeError(Exception):
    """Raised if the endpoint gives no usable reply; the message says why and what to do."""


@dataclass(frozen=True)
class Endpoint:
    """Address of a judge: the base URL, such as http://127.0.0.1:8000/v1, and the model's name."""

    url: str
    model: str
    seconds: float = 60.0
    """Timeout of one call."""


def checked_url(url: str) -> str:
    """Return the URL without a trailing slash. Raises JudgeError if it is not an http(s) address."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise JudgeError(
            f"{url!r} is not an http address; use the base URL, such as http://127.0.0.1:8000/v1"
        )
    if parts.username or parts.password:
        raise JudgeError(f"the address contains a key, which would be stored; set {KEY_VARIABLE} instead")
    if parts.query or parts.fragment:
        raise JudgeError("use the base URL without ? and #")
    return url.strip().rstrip("/").removesuffix("/chat/completions")


def complete(endpoint: Endpoint, messages: list[dict[str, str]], *, max_tokens: int = 1500) -> str:
    """Return the text of the reply, at temperature 0. Raises JudgeError."""
    body = {"model": endpoint.model, "messages": messages, "temperature": 0, "max_tokens": max_tokens}
    try:
        try:
            reply = _post(endpoint, {**body, "response_format": {"type": "json_object"}})
        except urllib.error.HTTPError as error:
            if error.code not in (400, 422):
                raise
            reply = _post(endpoint, body)  # some servers do not support a response format
    except (OSError, ValueError) as error:
        raise _told(endpoint, error) from error
    if (fault := body_fault("/chat/completions", reply)) is not None or reply is None:
        why = "" if fault is None else f" ({fault.what})"
        raise JudgeError(f"{endpoint.url} sent no chat completion{why}; is it an OpenAI-compatible endpoint?")
    text = reply["choices"][0]["message"].get("content")
    return text if isinstance(text, str) else ""


class _Stay(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: an answer goes only to the configured address."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _post(endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the JSON object of the reply; None if it is none."""
    base = checked_url(endpoint.url)
    parts = urlsplit(base)
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(KEY_VARIABLE, ""):
        if parts.scheme == "http" and parts.hostname not in LOCAL:
            raise JudgeError(f"{KEY_VARIABLE} would be sent unencrypted to {parts.hostname}; use https")
        headers["Authorization"] = f"Bearer {key}"
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{base}/chat/completions", data, headers, method="POST")
    no_proxy = [urllib.request.ProxyHandler({})] if parts.hostname in LOCAL else []
    with urllib.request.build_opener(_Stay, *no_proxy).open(request, timeout=endpoint.seconds) as response:
        data = response.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"the reply is longer than {MAX_BYTES:,} bytes")
    return json_object(data)


def _told(endpoint: Endpoint, error: Exception) -> JudgeError:
    """Describe a failed call in one line."""
    if isinstance(error, urllib.error.HTTPError):
        said = error.read(300).decode("utf-8", "replace").strip().replace("\n", " ")
        return JudgeError(f"{endpoint.url} answered {error.code}: {said or error.reason}")
    if isinstance(error, TimeoutError):
        return JudgeError(f"{endpoint.url} did not answer within {endpoint.seconds:g} s")
    if isinstance(error, urllib.error.URLError):
        return JudgeError(f"{endpoint.url} cannot be reached: {error.reason}; is the server running?")
    return JudgeError(f"{endpoint.url}: {error}")
