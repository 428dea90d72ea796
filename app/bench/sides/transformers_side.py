"""Hugging Face transformers as one side of a comparison. Imports nothing of ours.

`generate` with one static batch, as its documentation shows it: prompts are padded on the left to the longest, and
every row computes until the longest output is complete. Outputs are then cut to their lengths.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch
from side_protocol import serve


class Transformers:
    """A model in its checkpoint's or the named type, with SDPA."""

    def __init__(self, model: str, engine: dict[str, Any]) -> None:
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        self._module = import_module("transformers")
        self._model = self._module.AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, engine["dtype"]), attn_implementation="sdpa"
        ).eval()
        self._model.generation_config.eos_token_id = None

    def describe(self) -> dict[str, Any]:
        engine = f"transformers {self._module.__version__}"
        threads = torch.get_num_threads()
        return {"engine": engine, "torch": torch.__version__, "device": "cpu", "threads": threads}

    def generate(self, prompts: list[list[int]], max_tokens: list[int]) -> list[int]:
        """Complete all prompts greedily, each to exactly its length; return the output lengths."""
        return [len(tokens) for tokens in self._complete(prompts, max_tokens)]

    def tokens(self, prompts: list[list[int]], max_tokens: list[int]) -> dict[str, list[list[int]]]:
        """Return the completions themselves."""
        return {"tokens": self._complete(prompts, max_tokens)}

    @torch.inference_mode()
    def _complete(self, prompts: list[list[int]], max_tokens: list[int]) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        whole = self._model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=max(max_tokens), pad_token_id=0
        )
        rows = whole[:, width:].tolist()
        return [row[:length] for row, length in zip(rows, max_tokens, strict=True)]


if __name__ == "__main__":
    serve(Transformers)
