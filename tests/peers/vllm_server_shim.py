"""A pytest plugin that lets vLLM's tests of its HTTP server run against ours. `vllm_server_tests.py` loads it.

The tests start their server with `tests.utils.RemoteOpenAIServer` and look up tokens with vLLM's tokenizer. Both names
are replaced: the server is `prep serve shop` under the model's name, the tokenizer is that of `shop`. Every other name
of vLLM stands for a class that skips the test which uses it, since such a test is one of vLLM's own code.
"""

from __future__ import annotations

import base64
import os
import sys
from contextlib import ExitStack
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType, SimpleNamespace
from typing import Any, Self

import huggingface_hub
import openai
import pytest
from transformers import AutoTokenizer

from prep_common.child_process import ROOT
from tests.server.processes import start_server

WITH_VALUE = ("--max-model-len", "--max-num-seqs", "--max-logprobs", "--tool-call-parser")
ALONE = ("--enable-prompt-tokens-details", "--enable-sleep-mode", "--enable-lora")
"""Options of vLLM's server that ours has with the same meaning; the others are for models and devices."""
MOST_TOKENS = 2048
"""Context of `shop`."""


class RemoteOpenAIServer:
    """Our server under the name that the tests use."""

    DUMMY_API_KEY = "token"

    def __init__(self, model: str, args: list[str], **_: Any) -> None:
        self._stack = ExitStack()
        options = ["--served-model-name", model, *(arg for arg in args if arg in ALONE)]
        options += [
            "--structured-outputs-config",
            '{"finish_json": true}',
        ]  # `shop` writes strings without end
        options += [part for arg in args if "=" in arg for part in ("--lora-modules", arg) if "-lora=" in arg]
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


def snapshot_download(*_: Any, **__: Any) -> str:
    """Return an adapter of `shop` for every repository of an adapter."""
    return str(ROOT / "engine" / "zoo" / "models" / "shop-lora-support")


def get_tokenizer(*_: Any, **__: Any) -> Any:
    return AutoTokenizer.from_pretrained(ROOT / "engine" / "zoo" / "models" / "shop")


class _Absent(type):
    """Metaclass for classes of vLLM: their attributes are such classes too, and a test that calls one is skipped."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name, (), {})

    def __call__(cls, *_: Any, **__: Any) -> Any:
        if "PYTEST_CURRENT_TEST" in os.environ:
            pytest.skip(f"tests vLLM's own {cls.__name__}")
        return _Absent(cls.__name__, (), {})


class _AbsentModules(MetaPathFinder, Loader):
    """Find every module below `vllm`: its names are absent classes."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] == "vllm" else None

    def exec_module(self, module: ModuleType) -> None:
        module.__getattr__ = absent


def absent(name: str) -> Any:
    """Return an absent class: `__getattr__` of a module."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent(name, (), {})


def pytest_configure(config: pytest.Config) -> None:
    """Put the replacements where the tests import them from."""
    sys.meta_path.append(_AbsentModules())
    replaced: dict[str, dict[str, Any]] = {
        "tests.utils": {
            "RemoteOpenAIServer": RemoteOpenAIServer,
            "ROCM_EXTRA_ARGS": [],
            "__getattr__": absent,
        }
    }
    hub = SimpleNamespace(snapshot_download=snapshot_download)
    replaced["vllm.transformers_utils.repo_utils"] = {"hf_api": lambda: hub}
    for place in ("vllm.tokenizers", "vllm.transformers_utils.tokenizer"):
        replaced[place] = {"get_tokenizer": get_tokenizer}
    for name, content in replaced.items():
        parent, _, last = name.rpartition(".")
        if parent == "tests":
            sys.modules.setdefault(parent, ModuleType(parent)).__path__ = []
        module = sys.modules[name] = ModuleType(name)
        vars(module).update(content, __path__=[])
        setattr(import_module(parent), last, module)
    sys.modules["tests"].__path__.append(str(config.rootpath))  # for helpers that lie beside the tests
    huggingface_hub.snapshot_download = snapshot_download
    sys.modules.setdefault("pybase64", base64)


@pytest.fixture(scope="module")
def model_name() -> str:
    return "shop"


@pytest.fixture(scope="session")
def qwen3_lora_files() -> str:
    return snapshot_download()


@pytest.fixture(scope="module")
def server(model_name: str) -> Any:
    """Return a server for tests that have theirs in a conftest.py."""
    with RemoteOpenAIServer(model_name, ["--enable-prompt-tokens-details"]) as found:
        yield found
