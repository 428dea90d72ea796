"""Compare our engine with real vLLM on the same checkpoint: tokens, prefix-cache hits, preemptions.

    python tests/peers/parity.py --vllm-python ~/vllm/bin/python [--prompts 200] [--json]

Exit code 1 when fewer than 99 % of the greedy outputs are equal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine import LLM, SamplingParams  # noqa: E402 - run as a script
from engine.zoo.registry import resolve  # noqa: E402
from tests.peers.workloads import BLOCK_SIZE, Workload, chat, crowded, greedy  # noqa: E402

BAR = 0.99


@dataclass
class Difference:
    """The first position where two outputs part, and how close the choice was on each side."""

    prompt: int
    position: int
    ours: int
    theirs: int
    our_gap: float | None
    """Our logprob of our token minus that of theirs; near 0 means a near-tie."""
    their_gap: float | None


@dataclass
class Comparison:
    """What one workload showed."""

    workload: str
    prompts: int
    equal: int
    differences: list[Difference]
    hits: tuple[int, int]
    """Prefix-cache hit tokens: ours, vLLM's."""
    preemptions: tuple[int, int]


def run_ours(model: Path, workload: Workload) -> dict[str, Any]:
    """Run in our engine and describe the outcome in the same form as `vllm_side.py`."""
    requests: list[dict[str, Any]] = []
    preemptions = 0
    settings = {"dtype": "float32", "block_size": BLOCK_SIZE, **workload.engine}
    with LLM(str(model), **settings) as llm:
        for prompts in workload.rounds:
            outputs = llm.generate(
                [{"prompt_token_ids": ids} for ids in prompts],
                SamplingParams(**workload.sampling),
                use_tqdm=False,
            )
            for output in outputs:
                completion = output.outputs[0]
                preemptions += output.metrics.num_preemptions if output.metrics else 0
                requests.append(
                    {
                        "token_ids": list(completion.token_ids),
                        "logprobs": [
                            {str(token): entry.logprob for token, entry in position.items()}
                            for position in completion.logprobs or []
                        ],
                        "num_cached_tokens": output.num_cached_tokens,
                    }
                )
    return {"requests": requests, "preemptions": preemptions}


def run_vllm(python: str, model: Path, workload: Workload) -> dict[str, Any]:
    """Run in real vLLM, in its own environment."""
    settings = {
        "dtype": "float32",
        "block_size": BLOCK_SIZE,
        "enforce_eager": True,
        "seed": 0,
        **workload.engine,
    }
    settings.setdefault("max_num_batched_tokens", 4096)
    job = {"model": str(model), "engine": settings, "rounds": workload.rounds, "sampling": workload.sampling}
    with tempfile.TemporaryDirectory() as folder:
        job_file, result_file = Path(folder, "job.json"), Path(folder, "result.json")
        job_file.write_text(json.dumps(job))
        script = Path(__file__).with_name("vllm_side.py")
        done = subprocess.run(
            [python, str(script), str(job_file), str(result_file)], capture_output=True, text=True, cwd=folder
        )
        if done.returncode:
            raise SystemExit(f"vLLM failed on {workload.name}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return json.loads(result_file.read_text())


def compare(workload: Workload, ours: dict[str, Any], theirs: dict[str, Any]) -> Comparison:
    """Token by token, up to the first difference of each prompt."""
    pairs = list(zip(ours["requests"], theirs["requests"], strict=True))
    differences = [d for i, (a, b) in enumerate(pairs) if (d := first_difference(i, a, b)) is not None]
    return Comparison(
        workload=workload.name,
        prompts=len(pairs),
        equal=len(pairs) - len(differences),
        differences=differences,
        hits=(
            sum(a["num_cached_tokens"] or 0 for a, _ in pairs),
            sum(b["num_cached_tokens"] or 0 for _, b in pairs),
        ),
        preemptions=(ours["preemptions"], theirs["preemptions"]),
    )


def first_difference(prompt: int, ours: dict[str, Any], theirs: dict[str, Any]) -> Difference | None:
    a, b = ours["token_ids"], theirs["token_ids"]
    if a == b:
        return None
    position = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    x = a[position] if position < len(a) else -1
    y = b[position] if position < len(b) else -1
    return Difference(
        prompt,
        position,
        x,
        y,
        _gap(ours["logprobs"], position, x, y),
        _gap(theirs["logprobs"], position, y, x),
    )


def _gap(logprobs: list[dict[str, float]], position: int, chosen: int, other: int) -> float | None:
    if position >= len(logprobs) or str(other) not in logprobs[position]:
        return None
    return logprobs[position][str(chosen)] - logprobs[position][str(other)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm-python", required=True, help="the interpreter of vLLM's environment")
    parser.add_argument("--model", default="shop")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = resolve(options.model) or Path(options.model)
    comparisons = []
    for workload in (greedy(model, options.prompts), chat(model), crowded(model)):
        print(f"running {workload.name} ({len(workload.prompts)} prompts) in both engines …", file=sys.stderr)
        theirs = run_vllm(options.vllm_python, model, workload)
        comparisons.append(compare(workload, run_ours(model, workload), theirs))
    if options.json:
        print(json.dumps([asdict(c) for c in comparisons], indent=2))
    else:
        for c in comparisons:
            print(f"{c.workload:8} equal {c.equal}/{c.prompts}  hit tokens ours/vLLM {c.hits[0]}/{c.hits[1]}"
                  f"  preemptions ours/vLLM {c.preemptions[0]}/{c.preemptions[1]}")  # fmt: skip
            for d in c.differences:
                print(f"    {d}")
    first = comparisons[0]
    return 0 if first.equal >= BAR * first.prompts else 1


if __name__ == "__main__":
    sys.exit(main())
