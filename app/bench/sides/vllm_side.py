"""vLLM as one side of a comparison. Runs in vLLM's environment and imports nothing of ours.

The engine core runs in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0), so that both engines have the same number
of threads: with separate processes vLLM reserves one core for its scheduler, on two cores half of the machine.
What vLLM preloads into its workers (torch's OpenMP, the tcmalloc it ships) is preloaded here.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from side_protocol import LLMEngine, serve


def preload() -> None:
    """Start this program again with the libraries that vLLM gives its worker processes."""
    if "libtcmalloc" in os.environ.get("LD_PRELOAD", "") or not sys.platform.startswith("linux"):
        return
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None, "vLLM is not installed here"
    site = Path(spec.origin).parents[1]
    patterns = ("vllm/libs/libtcmalloc*.so*", "torch.libs/libgomp*.so*", "torch/lib/libgomp*.so*")
    paths = [next(iter(sorted(site.glob(pattern))), None) for pattern in patterns]
    tcmalloc, openmp = paths[0], paths[1] or paths[2]
    libraries = [str(library) for library in (tcmalloc, openmp) if library]
    if tcmalloc:
        os.environ["LD_PRELOAD"] = ":".join(libraries)
        os.execv(sys.executable, [sys.executable, *sys.argv])


class VLLMEngine(LLMEngine):
    package = "vllm"

    def describe(self) -> dict:
        device = self._llm.llm_engine.vllm_config.device_config.device_type
        return {"engine": f"vllm {self._module.__version__}", "device": device, **super().describe()}


if __name__ == "__main__":
    preload()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    serve(VLLMEngine)
