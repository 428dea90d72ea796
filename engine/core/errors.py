"""Errors of the core. Each message says what is wrong, why, and what to do."""

from __future__ import annotations

from typing import Literal

RejectionCode = Literal[
    "duplicate_id", "empty_prompt", "prompt_too_long", "exceeds_cache", "no_tokenizer", "no_eos"
]


class RequestRejected(ValueError):
    """A request that can never finish, rejected before it is queued."""

    def __init__(self, request_id: str, code: RejectionCode, message: str) -> None:
        super().__init__(f"request {request_id!r} rejected: {message}")
        self.request_id = request_id
        self.code = code
        """One of a closed set, for metrics and tests."""


class OutOfBlocks(RuntimeError):
    """More blocks were taken than are free: a bug in the caller, whatever the workload."""


class WorkerContractError(RuntimeError):
    """The worker's answer does not match its step."""


class IntegrityError(RuntimeError):
    """An invariant of the core is broken; the message lists every violation."""


class HashCollisionError(RuntimeError):
    """Two different prefixes have the same block hash. Raised only with `detect_hash_collisions`."""


class EngineDeadError(RuntimeError):
    """The engine failed in an earlier step and cannot go on. `__cause__` is that failure."""
