"""prep's engine: a complete, readable LLM inference engine.

    from engine import LLM, SamplingParams

    llm = LLM("shop")
    print(llm.generate(["Hello"], SamplingParams(temperature=0))[0].outputs[0].text)

Names resolve on first use, so that a program that needs only the scheduler never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from prep_common.own_packages import check_installation, enter

_of_others = enter(__name__)
check_installation("kernels")  # before torch: it says how OpenMP's threads wait

if TYPE_CHECKING:
    from engine.async_llm import AsyncLLM as AsyncLLM
    from engine.config import EngineArgs as EngineArgs
    from engine.llm import LLM as LLM
    from engine.lora.request import LoRARequest as LoRARequest
    from engine.outputs import CompletionOutput as CompletionOutput
    from engine.outputs import RequestOutput as RequestOutput
    from engine.sampling_params import SamplingParams as SamplingParams

_HOME = {
    "LLM": "engine.llm",
    "AsyncLLM": "engine.async_llm",
    "EngineArgs": "engine.config",
    "SamplingParams": "engine.sampling_params",
    "RequestOutput": "engine.outputs",
    "CompletionOutput": "engine.outputs",
    "LoRARequest": "engine.lora.request",
}

__all__ = list(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    return _of_others(name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
