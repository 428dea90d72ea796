"""llama.cpp as one side of a comparison. Runs in the environment of llama-cpp-python and imports nothing of ours.

Requests are batched as llama-server batches them: a number of slots, a sequence in each. A call of `llama_decode`
computes one token of every slot that generates and fills the rest of the batch with prompt tokens of others; a slot
whose request is finished takes the next one at once. Tokens are the most probable ones.

engine arguments:
    gguf       file to load; made from the checkpoint if it does not exist
    kind       type of its matrices (`make_gguf.TYPES`)
    slots      sequences at once
    slot_len   tokens of a sequence, at most
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llama_cpp as cpp
import numpy as np
from make_gguf import make_gguf
from side_protocol import serve

BATCH, MICRO_BATCH = 2048, 512
"""llama-server's defaults: tokens of a call, and of one pass through the model."""


@dataclass
class Slot:
    """A sequence in the KV cache and the request that it holds."""

    number: int
    request: int
    prompt: list[int]
    left: int
    """Tokens still to generate."""
    num_computed: int = 0
    last: int = -1
    """The token generated last; -1: none yet."""


class LlamaCpp:
    """A model, a context with one sequence for each slot, and a batch."""

    def __init__(self, model: str, engine: dict[str, Any]) -> None:
        file = Path(engine["gguf"])
        if not file.exists():
            make_gguf(Path(model), file, engine["kind"])
        self._threads = int(os.environ["OMP_NUM_THREADS"])
        cpp.llama_backend_init()
        model_params = cpp.llama_model_default_params()
        model_params.n_gpu_layers = 0
        self._model = cpp.llama_model_load_from_file(os.fsencode(file), model_params)
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {file}")
        self._num_slots = engine["slots"]
        params = cpp.llama_context_default_params()
        params.n_seq_max = self._num_slots
        params.n_ctx = self._num_slots * -(-engine["slot_len"] // 256) * 256  # as llama.cpp pads it
        params.n_batch, params.n_ubatch = BATCH, MICRO_BATCH
        params.n_threads = params.n_threads_batch = self._threads
        params.kv_unified = engine.get("unified", False)
        if engine["kind"] == "f32":
            params.type_k = params.type_v = cpp.GGML_TYPE_F32  # f16 otherwise
        self._context = cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise SystemExit("llama.cpp cannot create a context")
        self._memory = cpp.llama_get_memory(self._context)
        self._vocab_size = cpp.llama_vocab_n_tokens(cpp.llama_model_get_vocab(self._model))
        self._batch = cpp.llama_batch_init(BATCH, 0, 1)

    def describe(self) -> dict[str, Any]:
        engine = f"llama.cpp (llama-cpp-python {version('llama-cpp-python')})"
        return {"engine": engine, "torch": "", "device": "cpu", "threads": self._threads}

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> list[int]:
        """Complete all prompts greedily, each to exactly its length; return the output lengths."""
        return [len(tokens) for tokens in self._complete(prompts, max_tokens)]

    def tokens(self, prompts: list[list[int]], max_tokens: list[int]) -> dict[str, list[list[int]]]:
        """Return the completions themselves."""
        return {"tokens": self._complete(prompts, max_tokens)}

    def _complete(self, prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
        outputs: list[list[int]] = [[] for _ in prompts]
        waiting, free = deque(range(len(prompts))), deque(range(self._num_slots))
        running: list[Slot] = []
        while waiting or running:
            while waiting and free:
                request = waiting.popleft()
                running.append(Slot(free.popleft(), request, prompts[request], max_tokens[request]))
            for slot, token in self._step(running):
                outputs[slot.request].append(token)
                slot.last, slot.left = token, slot.left - 1
                if slot.left == 0:
                    running.remove(slot)
                    free.append(slot.number)
                    cpp.llama_memory_seq_rm(self._memory, slot.number, -1, -1)
        return outputs

    def _step(self, running: list[Slot]) -> list[tuple[Slot, int]]:
        """Compute one batch; return the slots that got a token, with the token."""
        self._batch.n_tokens = 0
        sampled = [slot for slot in running if slot.last >= 0]
        for slot in sampled:
            self._add(slot, slot.last, wants_logits=True)
        for slot in running:
            if slot.last >= 0:
                continue
            chunk = slot.prompt[slot.num_computed : slot.num_computed + BATCH - self._batch.n_tokens]
            for token in chunk:
                self._add(slot, token, wants_logits=slot.num_computed + 1 == len(slot.prompt))
            if slot.num_computed == len(slot.prompt):
                sampled.append(slot)
        if code := cpp.llama_decode(self._context, self._batch):
            raise RuntimeError(f"llama_decode returned {code}")
        if not sampled:
            return []
        logits = np.ctypeslib.as_array(
            cpp.llama_get_logits(self._context), (len(sampled), self._vocab_size)
        )  # rows in the order of the batch
        return list(zip(sampled, logits.argmax(axis=1).tolist(), strict=True))

    def _add(self, slot: Slot, token: int, *, wants_logits: bool) -> None:
        batch, index = self._batch, self._batch.n_tokens
        batch.token[index] = token
        batch.pos[index] = slot.num_computed
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = slot.number
        batch.logits[index] = wants_logits
        batch.n_tokens = index + 1
        slot.num_computed += 1


if __name__ == "__main__":
    serve(LlamaCpp)
