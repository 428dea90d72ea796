"""Compare our engine with real vLLM on the same checkpoint.

    python tests/peers/parity.py --vllm-python ~/vllm/bin/python [--prompts 200] [--json]
    python tests/peers/parity.py --vllm-python ~/vllm/bin/python --features all        (or: lora quantization ...)

The first compares tokens, prefix-cache hits and preemptions of plain generation, the second the features of
`features.py`. Exit code 1 when a workload that must agree does not (`compare.py` says what that means).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.zoo.registry import resolve  # noqa: E402 - run as a script
from tests.peers import our_side  # noqa: E402
from tests.peers.compare import Comparison, compare  # noqa: E402
from tests.peers.features import FEATURES  # noqa: E402
from tests.peers.workloads import BLOCK_SIZE, Workload, chat, crowded, greedy  # noqa: E402

THEIR_SETTINGS = {"enforce_eager": True, "seed": 0, "max_num_batched_tokens": 4096}


def job(model: Path, workload: Workload, **defaults: Any) -> dict[str, Any]:
    """A workload in the form that `drive.py` reads; `defaults` are settings that it may override."""
    return {
        "model": workload.model or str(model),
        "engine": {"dtype": "float32", "block_size": BLOCK_SIZE, **defaults, **workload.engine},
        "rounds": workload.rounds,
        "sampling": workload.sampling,
        "adapters": workload.adapters,
        "beam": workload.beam,
    }


def run_vllm(python: str, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """{"version", "results"} of real vLLM, in its own environment."""
    with tempfile.TemporaryDirectory() as folder:
        job_file, result_file = Path(folder, "jobs.json"), Path(folder, "results.json")
        job_file.write_text(json.dumps(jobs))
        script = Path(__file__).with_name("vllm_side.py")
        done = subprocess.run(
            [python, str(script), str(job_file), str(result_file)], capture_output=True, text=True, cwd=folder
        )
        if done.returncode:
            raise SystemExit(f"vLLM failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return json.loads(result_file.read_text())


def show(comparison: Comparison) -> None:
    """A line for a workload, and one for every difference."""
    c = comparison
    if c.error:
        print(f"{c.workload:22} not in this vLLM: {c.error.splitlines()[0][:200]}")
        return
    verdict = "agrees" if c.agrees else "differs"
    print(
        f"{c.workload:22} {verdict}: equal {c.equal}/{c.outputs}, logprobs within {c.logprob_gap:.1e}", end=""
    )
    print(f", of the prompt {c.prompt_logprob_gap:.1e}" if c.prompt_logprob_gap else "")
    if any(map(any, c.counters.values())):
        print("    ours/vLLM: " + ", ".join(f"{key} {a}/{b}" for key, (a, b) in c.counters.items() if a or b))
    if c.note:
        print(f"    {c.note}")
    for difference in c.differences:
        print(f"    {difference}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--vllm-python", default=os.environ.get("PREP_VLLM_PYTHON"), help="of vLLM's environment"
    )
    parser.add_argument("--model", default="shop")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--features", nargs="+", choices=["all", *FEATURES], help="compare these instead")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.vllm_python:
        parser.error("--vllm-python, or PREP_VLLM_PYTHON in the environment")
    model = resolve(options.model) or Path(options.model)
    with tempfile.TemporaryDirectory() as folder:
        workloads = _workloads(options, model, Path(folder))
        print(f"{len(workloads)} workloads, first here, then in vLLM …", file=sys.stderr)
        ours = [our_side.run(job(model, workload)) for workload in workloads]
        theirs = run_vllm(options.vllm_python, [job(model, w, **THEIR_SETTINGS) for w in workloads])
    comparisons = [
        compare(workload.name, a, b, note=workload.note, near_tie=workload.near_tie)
        for workload, a, b in zip(workloads, ours, theirs["results"], strict=True)
    ]
    if options.json:
        print(
            json.dumps({"vllm": theirs["version"], "workloads": [asdict(c) for c in comparisons]}, indent=2)
        )
    else:
        print(f"vLLM {theirs['version']}, fp32")
        for comparison in comparisons:
            show(comparison)
    return 0 if all(map(_is_as_expected, workloads, comparisons)) else 1


def _is_as_expected(workload: Workload, comparison: Comparison) -> bool:
    if comparison.error:
        return bool(workload.not_in_vllm)
    return comparison.agrees or not workload.must_agree


def _workloads(options: argparse.Namespace, model: Path, folder: Path) -> list[Workload]:
    if not options.features:
        return [greedy(model, options.prompts), chat(model), crowded(model)]
    chosen = [build for name, build in FEATURES.items() if {name, "all"} & set(options.features)]
    return [workload for build in chosen for workload in build(model, folder)]


if __name__ == "__main__":
    sys.exit(main())
