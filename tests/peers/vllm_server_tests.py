"""Run vLLM's own tests of its HTTP server against ours, by hand.

    cd ~/vllm-source/tests/entrypoints/openai        (README.md says where to get it)
    python ~/prep/tests/peers/vllm_server_tests.py completion/test_completion.py chat_completion/test_chat.py ...

Exit code 1 if a test fails that is not in KNOWN, or one of KNOWN passes.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
BEAMS = "asks for beam search, which is offline only here: status 501"
OWN_MODEL = "expects tokens, lengths or endings of the answers of its own model"
WORDS = "looks for the words of vLLM's message; the status is the same"
TOKENIZER_INFO = "asks for /tokenizer_info, which is absent"
TOKEN_IDS = "asks for logprob_token_ids, which is absent: status 501"
OWN_CODE = "tests vLLM's own code, not its server"
KNOWN = {
    "test_load_prompt_embeds": OWN_CODE,
    "test_tokenize_completions": OWN_MODEL,
    "test_tokenize_chat": OWN_MODEL,
    "test_tokenize_chat_with_tools": OWN_MODEL,
    "test_tokenize_with_return_token_strs": OWN_MODEL,
    "test_chat_session_root_path_with_api_key": "needs --root-path, which is absent",
    "test_tokenizer_info_basic": TOKENIZER_INFO,
    "test_tokenizer_info_schema": TOKENIZER_INFO,
    "test_tokenizer_info_consistency_with_tokenize": TOKENIZER_INFO,
    "test_tokenizer_info_chat_template": TOKENIZER_INFO,
    "test_chat_completion_request_n_parameter_exceeds_default_limit": OWN_CODE,
    "test_disable_prompt_embeds": OWN_CODE,
    "test_stream_text_offset_matches_non_stream_with_stop_holdback": OWN_CODE,
    "test_kv_transfer_prompt_token_ids_round_trip": "asks for kv_transfer_params: status 501",
    "test_kv_transfer_prompt_token_ids_streaming": "asks for kv_transfer_params: status 501",
    "test_single_completion": OWN_MODEL,
    "test_completion_streaming": OWN_MODEL,
    "test_parallel_no_streaming": OWN_MODEL,
    "test_parallel_streaming": OWN_MODEL,
    "test_batch_completions": BEAMS,
    "test_empty_prompt": WORDS,
    "test_out_of_vocab_token_ids": WORDS,
    "test_single_chat_session": OWN_MODEL,
    "test_more_than_one_prompt_logprobs_chat": OWN_MODEL,
    "test_response_format_json_schema": OWN_MODEL,
    "test_complex_message_content": OWN_MODEL,
    "test_invocations": "asks for /invocations of SageMaker, which is absent",
    "test_long_seed": WORDS,
    "test_chat_logit_bias_multiple_non_integer_keys": WORDS,
    "test_structured_outputs_choice_chat": OWN_MODEL,
    "test_structured_outputs_json_chat": OWN_MODEL,
    "test_response_format_json_object": OWN_MODEL,
    "test_chat_session_with_echo_and_continue_final_message": OWN_MODEL,
    "test_chat_completion_with_tool_use": OWN_MODEL,
    "test_chat_completion_with_emoji_and_token_ids": OWN_MODEL,
    "test_completion_stream_options_and_logprobs_with_long_prompts": "needs a context of more than 2,048 tokens",
    "test_chat_completion_stream_options_and_logprobs_with_long_prompts": "needs a context of more than 2,048 tokens",
    "test_logprob_token_ids": TOKEN_IDS,
    "test_logprob_token_ids_stream": TOKEN_IDS,
    "test_logprob_token_ids_returns_requested_ids": TOKEN_IDS,
    "test_logprob_token_ids_stream_with_no_top_k": TOKEN_IDS,
    "test_completion_rejects_explicit_token_ids_without_generated_tokens": OWN_CODE,
    "test_requests_reject_explicit_token_ids_with_beam_search": OWN_CODE,
    "test_check_models": "the root is the model that is served, and that is `shop` under another name",
    "test_completion_return_tokens_as_token_ids_completion": "needs --return-tokens-as-token-ids, which is absent",
    "test_chat_return_tokens_as_token_ids_completion": "needs --return-tokens-as-token-ids, which is absent",
    "test_chat_with_enable_force_include_usage": "needs --enable-force-include-usage, which is absent",
}
"""Test -> why it fails here. None may be that ours is wrong."""
KNOWN_CASES = (
    (r"test_function_tool_use\[\w+-True-.*", "needs --reasoning-parser, which is absent"),
    (
        r"test_function_tool_use\[\w+-False-auto-.*",
        "expects the model to call a tool: `shop` answers in words",
    ),
)
"""The same for some parameters of a test: a pattern of its whole name."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, help="test files of vLLM's repository")
    args = parser.parse_args()
    results = run([file.resolve() for file in args.files])
    wrong = [name for name, problem in results.items() if problem and not is_known(name)]
    passing = {base(name) for name, problem in results.items() if not problem}
    failing = {base(name) for name, problem in results.items() if problem}
    stale = sorted((KNOWN.keys() & passing) - failing)
    stale += [name for name, problem in results.items() if not problem and is_known(name, only_cases=True)]
    for name in wrong:
        print(f"{name}\n    {results[name]}")
    for name in stale:
        print(f"{name} is in KNOWN and passes")
    num_known = sum(bool(problem) for problem in results.values()) - len(wrong)
    num_passed = len(results) - num_known - len(wrong)
    print(f"{len(results)} tests: {num_passed} pass, {num_known} known failures, {len(wrong)} others")
    sys.exit(bool(wrong or stale))


def run(files: list[Path]) -> dict[str, str]:
    """Return the problem of each test, empty if it passed, without the skipped ones."""
    entrypoints = next(parent for parent in files[0].parents if parent.name == "entrypoints")
    with TemporaryDirectory() as folder:
        report, copy = Path(folder) / "report.xml", Path(folder) / "entrypoints"
        shutil.copytree(entrypoints, copy, ignore=shutil.ignore_patterns("__init__.py", "__pycache__"))
        for file in copy.rglob("test_*.py"):  # the shim replaces tests.utils
            file.write_text(file.read_text().replace("from ...utils import", "from tests.utils import"))
        files = [copy / file.relative_to(entrypoints) for file in files]
        options = [
            "-q",
            "-c",
            "/dev/null",
            f"--rootdir={folder}",
            "--import-mode=importlib",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
        ]
        plugins = ["-p", "tests.peers.vllm_server_shim", "-o", "asyncio_mode=auto", f"--junitxml={report}"]
        subprocess.run(
            [sys.executable, "-m", "pytest", *options, *plugins, *map(str, files)], cwd=ROOT, check=False
        )
        cases = ElementTree.parse(report).iter("testcase")
        return {case.get("name", ""): problem(case) for case in cases if case.find("skipped") is None}


def problem(case: ElementTree.Element) -> str:
    """Return the first line of a failure; empty if there is none."""
    for kind in ("failure", "error"):
        if (found := case.find(kind)) is not None:
            return (found.get("message") or found.text or kind).strip().splitlines()[0][:200]
    return ""


def is_known(name: str, *, only_cases: bool = False) -> bool:
    """Whether a test may fail. only_cases: by its parameters."""
    in_cases = any(re.fullmatch(pattern, name) for pattern, _ in KNOWN_CASES)
    return in_cases or (base(name) in KNOWN and not only_cases)


def base(name: str) -> str:
    """Return the name of a test without its parameters."""
    return name.partition("[")[0]


if __name__ == "__main__":
    main()
