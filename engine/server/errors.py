"""Errors of the API: status, type and message in OpenAI's shape.

    400 BadRequestError          the request is wrong: types, values, combinations, a prompt that is too long
    401 AuthenticationError      no API key, or a wrong one
    404 NotFoundError            unknown model, adapter or path
    405 MethodNotAllowedError    the path has other methods
    408 TimeoutError             not finished within --request-timeout, or its body did not come within 60 s
    413 ContentTooLargeError     the body is longer than --max-body-mib
    429 TooManyRequestsError     the queue is full: try again after Retry-After seconds (vLLM answers 503)
    431 HeadersTooLargeError     path and headers have more than 64 KiB
    499                          the client hung up; only in http_requests_total
    500 InternalServerError      the engine failed; the server ends
    501 NotImplementedError      vLLM or OpenAI have it, this engine does not
    503 ServiceUnavailableError  the server is shutting down, or the engine sleeps

Wrong types are 400 as in vLLM, not FastAPI's 422. In a stream that has begun the error
is an event. Source: vLLM entrypoints/serve/exception_handling.
"""

from __future__ import annotations

import re
from typing import Any

from engine.core.errors import EngineDeadError
from engine.server.protocol import ChatCompletionRequest, CompletionRequest

TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "TimeoutError",
    409: "ConflictError",
    413: "ContentTooLargeError",
    429: "TooManyRequestsError",
    431: "HeadersTooLargeError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
LONGEST_MESSAGE = 1000
LONGEST_PARAM = 100
FIELDS = frozenset(ChatCompletionRequest.model_fields) | frozenset(CompletionRequest.model_fields)


class ApiError(Exception):
    """An error for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        type: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """param: the field of the request that is wrong."""
        message = (
            _cut(message, LONGEST_MESSAGE).encode(errors="replace").decode()
        )  # surrogates cannot be sent
        super().__init__(message)
        self.status, self.message = status, message
        self.param = None if param is None else _cut(param, LONGEST_PARAM)
        self.type = type or TYPES[status]
        self.headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}

    def body(self) -> dict[str, Any]:
        return {
            "error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status}
        }


def api_error(error: BaseException) -> ApiError:
    """Return the error that a client gets for an exception of the engine or its frontend."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TimeoutError):
        return ApiError(408, "the request was not finished in time and was ended")
    if isinstance(
        error, ValueError
    ):  # InvalidRequestError, RequestRejected, ChatTemplateError, ToolError, ...
        return ApiError(400, str(error), param=named_field(str(error)))
    if isinstance(error, EngineDeadError):
        return ApiError(500, str(error))
    return ApiError(500, "internal error; the server's log has the details")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


OF_THE_REQUEST = ("structured_outputs", "every token is forbidden")
"""Beginnings of the engine's errors that the client can avoid."""


def is_of_the_request(error: str) -> bool:
    """Return whether an error with which the engine ended a request is the client's: status 400, and no alert."""
    return error.startswith(OF_THE_REQUEST)


def named_field(message: str) -> str | None:
    """Return the field that an engine's message about a wrong value begins with: `top_p must be ...`."""
    first = re.split(r"[\s:=\[(.]", message, maxsplit=1)[0]
    return first if first in FIELDS else None
