"""The recorded names of vLLM's request fields are those of the installed vLLM. Skipped without PREP_VLLM_PYTHON."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest

from engine.server.fields import VLLM

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("PREP_VLLM_PYTHON" not in os.environ, reason="set PREP_VLLM_PYTHON"),
]
CLASSES = {
    "/v1/completions": "openai/completion/protocol.py CompletionRequest",
    "/v1/chat/completions": "openai/chat_completion/protocol.py ChatCompletionRequest",
    "/tokenize, text": "serve/tokenize/protocol.py TokenizeCompletionRequest",
    "/tokenize, messages": "serve/tokenize/protocol.py TokenizeChatRequest",
    "/detokenize": "serve/tokenize/protocol.py DetokenizeRequest",
    "/v1/load_lora_adapter": "serve/lora/protocol.py LoadLoRAAdapterRequest",
    "/v1/unload_lora_adapter": "serve/lora/protocol.py UnloadLoRAAdapterRequest",
    "stream_options": "generate/base/protocol.py StreamOptions",
    "response_format": "generate/base/protocol.py ResponseFormat",
    "response_format.json_schema": "generate/base/protocol.py JsonSchemaResponseFormat",
}
"""Place of an object in the API -> the file and class in vLLM's entrypoints."""


def entrypoints() -> Path:
    """Return the folder of vLLM's entrypoints, found without importing vLLM."""
    program = "import importlib.util; print(importlib.util.find_spec('vllm').submodule_search_locations[0])"
    command = [os.environ["PREP_VLLM_PYTHON"], "-c", program]
    return (
        Path(subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip())
        / "entrypoints"
    )


def fields_of(file: Path, name: str) -> set[str]:
    """Return the names that the fields of a class have in JSON."""
    [found] = [
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    fields = set()
    for node in found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            keywords = node.value.keywords if isinstance(node.value, ast.Call) else []
            aliases = [
                keyword.value.value
                for keyword in keywords
                if keyword.arg == "alias" and isinstance(keyword.value, ast.Constant)
            ]
            fields.add(str(aliases[0]) if aliases else node.target.id)
    return fields


@pytest.mark.parametrize("place", VLLM)
def test_the_recorded_fields_are_those_of_vllm(place: str) -> None:
    file, name = CLASSES[place].split()
    assert set(VLLM[place][1]) == fields_of(entrypoints() / file, name)
