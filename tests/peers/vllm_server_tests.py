"""Run vLLM's own tests of its HTTP server against ours, by hand.

    git clone --depth 1 --branch v0.32.0 https://github.com/vllm-project/vllm ~/vllm-source
    python tests/peers/vllm_server_tests.py ~/vllm-source/tests/entrypoints/openai/completion/test_completion.py ...

Exit code 1 if a test fails that is not in KNOWN, or one of KNOWN passes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
BEAMS = "asks for beam search, which is offline only here: status 501"
OWN_MODEL = "expects tokens, lengths or endings of the answers of its own model"
WORDS = "looks for the words of vLLM's message; the status is the same"
KNOWN = {
    "test_single_completion": OWN_MODEL,
    "test_completion_streaming": OWN_MODEL,
    "test_parallel_no_streaming": OWN_MODEL,
    "test_parallel_streaming": OWN_MODEL,
    "test_batch_completions": BEAMS,
    "test_empty_prompt": WORDS,
    "test_out_of_vocab_token_ids": WORDS,
    "test_single_chat_session": OWN_MODEL,
    "test_long_seed": WORDS,
}
"""Test -> why it fails here. None may be that ours is wrong."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, help="test files of vLLM's repository")
    args = parser.parse_args()
    results = run([file.resolve() for file in args.files])
    wrong = [name for name, problem in results.items() if problem and base(name) not in KNOWN]
    passing = {base(name) for name, problem in results.items() if not problem}
    failing = {base(name) for name, problem in results.items() if problem}
    stale = sorted((KNOWN.keys() & passing) - failing)
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
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = ["--noconftest", "--import-mode=importlib", "-c", "/dev/null", f"--rootdir={folder}", "-q"]
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


def base(name: str) -> str:
    """Return the name of a test without its parameters."""
    return name.partition("[")[0]


if __name__ == "__main__":
    main()
