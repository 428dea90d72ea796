"""A pytest plugin that lets vLLM's tests of its HTTP server run against ours. `vllm_server_tests.py` loads it.

The tests start their server with `tests.utils.RemoteOpenAIServer` and look up tokens with vLLM's tokenizer. Both names
are replaced: the server is `prep serve shop` under the model's name, the tokenizer is that of `shop`.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import Any, Self

import openai
import pytest
from transformers import AutoTokenizer

from common.child_process import ROOT
from tests.server.processes import start_server

WITH_VALUE = ("--max-model-len", "--max-num-seqs", "--max-logprobs", "--tool-call-parser")
ALONE = ("--enable-prompt-tokens-details", "--enable-sleep-mode")
"""Options of vLLM's server that ours has with the same meaning; the others are for models and devices."""
MOST_TOKENS = 2048
"""Context of `shop`."""


class RemoteOpenAIServer:
    """Our server under the name that the tests use."""

    DUMMY_API_KEY = "token"

    def __init__(self, model: str, args: list[str], **_: Any) -> None:
        self._stack = ExitStack()
        options = ["--served-model-name", model, *(each for each in args if each in ALONE)]
        for name, value in zip(args, args[1:], strict=False):
            if name in WITH_VALUE:
                most = MOST_TOKENS if name == "--max-model-len" else sys.maxsize
                options += [name, str(min(int(value), most)) if value.isdecimal() else value]
        self._served = start_server(self._stack, Path(mkdtemp()), *options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url_for(self, *parts: str) -> str:
        return "/".join([self._served.url, *(part.strip("/") for part in parts)])

    def get_client(self, **options: Any) -> openai.OpenAI:
        options = {"base_url": self.url_for("v1"), "api_key": self.DUMMY_API_KEY, "max_retries": 0, **options}
        return openai.OpenAI(**options)

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        options = {"base_url": self.url_for("v1"), "api_key": self.DUMMY_API_KEY, "max_retries": 0, **options}
        return openai.AsyncOpenAI(**options)


def get_tokenizer(*_: Any, **__: Any) -> Any:
    return AutoTokenizer.from_pretrained(ROOT / "engine" / "zoo" / "models" / "shop")


def pytest_configure(config: pytest.Config) -> None:
    """Put the replacements where the tests import them from."""
    replaced = {"tests.utils": {"RemoteOpenAIServer": RemoteOpenAIServer}}
    for place in ("vllm.tokenizers", "vllm.transformers_utils.tokenizer"):
        replaced[place] = {"get_tokenizer": get_tokenizer}
    for name, content in replaced.items():
        parent, _, last = name.rpartition(".")
        for each in (parent.split(".")[0], parent):
            sys.modules.setdefault(each, ModuleType(each)).__path__ = []  # type: ignore[attr-defined]
        module = sys.modules[name] = ModuleType(name)
        vars(module).update(content)
        setattr(sys.modules[parent], last, module)


@pytest.fixture(scope="module")
def model_name() -> str:
    return "shop"


@pytest.fixture(scope="module")
def server(model_name: str) -> Any:
    """Return a server for tests that have theirs in a conftest.py."""
    with RemoteOpenAIServer(model_name, ["--enable-prompt-tokens-details"]) as found:
        yield found
