"""What can go wrong in the core, each with a sentence that says what, why and what to do."""

from __future__ import annotations

from typing import Literal

RejectionCode = Literal[
    "duplicate_id", "empty_prompt", "prompt_too_long", "exceeds_cache", "no_tokenizer", "no_eos"
]


class RequestRejected(ValueError):
    """A request that the scheduler refuses at the door, so that it never has to fail in the loop."""

    def __init__(self, request_id: str, code: RejectionCode, message: str) -> None:
        super().__init__(f"request {request_id!r} rejected: {message}")
        self.request_id = request_id
        self.code = code
        """Closed set, for metrics and tests."""


class OutOfBlocks(RuntimeError):
    """Someone took blocks without asking how many are free. A bug in the caller, never in a workload."""


class WorkerContractError(RuntimeError):
    """The worker's answer does not match the step it was given."""


class IntegrityError(RuntimeError):
    """Something that is always true of the core is not: `check_integrity` lists what."""


class HashCollisionError(RuntimeError):
    """Two different prefixes have the same block hash. Seen only with a weak digest in debug mode."""


class EngineDeadError(RuntimeError):
    """The engine failed in an earlier step and runs nothing any more. Its cause is the failure itself."""
