"""Tool calls in texts, read by this engine and by vLLM: DIFFERENT has the texts that they read differently."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from engine.frontend.tool_parsers import make_tool_parser, read_calls

PYTHON = os.environ.get("PREP_VLLM_PYTHON", "")
F = '{"name": "find", "arguments": {"title": "東京 }", "n": [1, {"a": null}]}}'
G = '{"name": "open_today", "arguments": {}}'
P = F.replace("arguments", "parameters")
ARGUMENTS = '{"title": "a } b", "n": -1.5e3}'
SAME = [
    ("hermes", "Good evening."),
    ("hermes", f"<tool_call>{F}</tool_call>"),
    ("hermes", f"Yes.\n<tool_call>\n{F}\n</tool_call>\n<tool_call>\n{G}\n</tool_call>"),
    ("hermes", f"<tool_call>{F}"),
    ("hermes", '<tool_call>{"name": "find"</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>'),
    ("hermes", "<tool_call>{'name': 'find', 'arguments': {}}</tool_call>"),
    ("llama3_json", "Good evening."),
    ("llama3_json", P),
    ("llama3_json", F),
    ("llama3_json", f"<|python_tag|>{P}"),
    ("llama3_json", f"{P}; {F}"),
    ("llama3_json", '{"title": "One Piece", "price": 640}'),
    ("llama3_json", "if (a) { return b; }"),
    ("llama3_json", '{"name": "find", "parameters": {"title": '),
    ("mistral", "Good evening."),
    ("mistral", f"[TOOL_CALLS]find{ARGUMENTS}"),
    ("mistral", f"[TOOL_CALLS]find[ARGS]{ARGUMENTS}[TOOL_CALLS]open_today[ARGS]{{}}"),
    ("mistral", f"Yes.[TOOL_CALLS]find{ARGUMENTS}"),
    ("mistral", f"[TOOL_CALLS] [{F}, {G}]"),
    ("mistral", f"Yes.[TOOL_CALLS] [{F}]"),
    ("pythonic", "Good evening."),
    ("pythonic", "[find(title='a ) b', n=[1, {'a': None}], m=-2)]"),
    ("pythonic", '[find(title="it\'s", all=True), open_today()]'),
    ("pythonic", "[open_today(), find(t=(1, 2), u={'k': {'l': 1.5}})]"),
    ("pythonic", "[find(title=other(1))]"),
    ("pythonic", "[1, 2, 3]"),
]
DIFFERENT = {
    ("hermes", f"<tool_call>{F}</tool_call> and more"): "the text after a call is content",
    ("llama3_json", f"Yes. {P}"): "the text before a call is content",
    ("llama3_json", f'{P}; {{"name": "open_today"}}'): "a malformed call does not undo the others",
    ("mistral", f"[TOOL_CALLS]find{ARGUMENTS} and more"): "the text after a call is content",
    ("pythonic", "Yes.\n[open_today()]"): "a list of calls may begin a line",
    ("hermes", '<tool_call>{"name": "open_today"}</tool_call>'): "a call without arguments is one",
}
"""Behaviour of this engine that vLLM lacks."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON, reason="PREP_VLLM_PYTHON names no Python with vLLM; see tests/peers/README.md"
    ),
]


def ours(name: str, text: str) -> tuple[str, list[tuple[str, object]]]:
    content, calls = read_calls(make_tool_parser(name), text)
    return content.strip(), [(called, json.loads(arguments)) for called, arguments in calls]


def test_tool_calls_are_those_of_vllm_but_for_known_differences() -> None:
    cases = [*SAME, *DIFFERENT]
    script = Path(__file__).with_name("vllm_tool_calls.py")
    done = subprocess.run([PYTHON, script], input=json.dumps(cases), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = [
        (content.strip(), [(name, arguments) for name, arguments in calls])
        for content, calls in json.loads(done.stdout.splitlines()[-1])
    ]
    differing = {
        case: (ours(*case), found) for case, found in zip(cases, theirs, strict=True) if ours(*case) != found
    }
    assert differing.keys() == DIFFERENT.keys(), differing
