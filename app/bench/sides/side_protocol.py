"""The child's half of a comparison: an engine in a separate process, driven by lines of JSON.

    argv[1]  {"model": folder, "engine": {...}}                    what to load
    stdout   {"engine": "vllm 0.32.0", "threads": 2, ...}          once, when it is loaded
    stdin    {"do": "generate", "prompts": [...], "max_tokens": [...]}
    stdout   {"seconds": ..., "output_lens": [...], ...}           one line for each request
    stdin    end of file                                           leave

This file also runs in the other engine's environment: it imports nothing but the standard library. Between two
requests the process sleeps in `readline`; the processor time of its threads meanwhile is reported with the
next answer, which reveals an idle engine that spins.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from importlib import import_module
from time import perf_counter, process_time


def serve(load) -> None:
    """Load an engine and answer until stdin ends.

    load(model, engine arguments) returns an object with `describe() -> dict` and
    `generate(prompts, max_tokens) -> output length of each`; any other method taking prompts and max_tokens can
    be requested by name, and returns what JSON can hold. The engine's output goes to stderr.
    """
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values) -> None:
        print(json.dumps(values), file=answers, flush=True)

    job = json.loads(sys.argv[1])
    engine = load(job["model"], job["engine"])
    answer(**engine.describe())
    idle_since, cpu_before = perf_counter(), process_time()
    for line in sys.stdin:
        idle_seconds, idle_cpu_seconds = perf_counter() - idle_since, process_time() - cpu_before
        request = json.loads(line)
        began, cpu_began = perf_counter(), process_time()
        result = getattr(engine, request["do"])(request["prompts"], request["max_tokens"])
        seconds, cpu_seconds = perf_counter() - began, process_time() - cpu_began
        idle = {"idle_seconds": idle_seconds, "idle_cpu_seconds": idle_cpu_seconds}
        busy = {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_rss_bytes": peak_rss_bytes()}
        answer(result=result, **busy, **idle)
        idle_since, cpu_before = perf_counter(), process_time()


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends: a stopped process does not see the end of stdin."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL), 0, 0, 0)


def peak_rss_bytes(pid=None) -> int:
    """Return the peak memory of this process or another. Linux's ru_maxrss would include the parent's before `exec`.

    Elsewhere that of another process is 0.
    """
    try:
        with open(f"/proc/{pid or 'self'}/status") as status:
            line = next((line for line in status if line.startswith("VmHWM:")), "VmHWM: 0")
        return int(line.split()[1]) * 1024
    except OSError:  # macOS: ru_maxrss is in bytes; or the other process has ended
        return 0 if pid else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class LLMEngine:
    """An engine with the interface of `vllm.LLM`, which ours has as well, with the methods that `serve` calls."""

    package: str

    def __init__(self, model, engine) -> None:
        self._module = import_module(self.package)
        self._llm = self._module.LLM(model, **engine)

    def describe(self) -> dict:
        import torch

        return {"torch": torch.__version__, "threads": torch.get_num_threads()}

    def generate(self, prompts, max_tokens) -> list:
        """Complete all prompts greedily, each to exactly its length; return the output lengths.

        Prompts are texts or lists of token ids.
        """
        params, inputs = [], []
        for prompt, count in zip(prompts, max_tokens, strict=True):
            is_text = isinstance(prompt, str)
            settings = {"temperature": 0.0, "max_tokens": count, "ignore_eos": True, "detokenize": is_text}
            params.append(self._module.SamplingParams(**settings))
            inputs.append(prompt if is_text else {"prompt_token_ids": prompt})
        outputs = self._llm.generate(inputs, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]
