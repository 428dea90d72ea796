"""prep's engine: a complete, readable LLM inference engine.

    from engine import LLM, SamplingParams

    llm = LLM("shop")
    print(llm.generate(["Hello"], SamplingParams(temperature=0))[0].outputs[0].text)

Names resolve on first use, so that a program that needs only the scheduler never imports torch.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Read by OpenMP when torch is imported. Between two kernels a thread waits some microseconds, between two steps much
# longer: it should spin for the first and sleep for the second. Always asleep (OMP_WAIT_POLICY=passive) a step of one
# request takes ten times as long; spinning for milliseconds, as is the default, takes the core from other programs.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

if TYPE_CHECKING:
    from engine.async_llm import AsyncLLM as AsyncLLM
    from engine.config import EngineArgs as EngineArgs
    from engine.llm import LLM as LLM
    from engine.outputs import CompletionOutput as CompletionOutput
    from engine.outputs import RequestOutput as RequestOutput
    from engine.sampling_params import SamplingParams as SamplingParams

_EXPORTS = {
    "LLM": "engine.llm",
    "AsyncLLM": "engine.async_llm",
    "EngineArgs": "engine.config",
    "SamplingParams": "engine.sampling_params",
    "RequestOutput": "engine.outputs",
    "CompletionOutput": "engine.outputs",
}

__all__ = [  # noqa: PLE0604 - the names above, resolved lazily
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineArgs",
    "RequestOutput",
    "SamplingParams",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'engine' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
