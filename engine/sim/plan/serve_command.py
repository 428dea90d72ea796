"""The `vllm serve` and `prep serve` commands of a deployment, and the list of vLLM's options to check them against.

`python -m engine.sim.plan.serve_command FOLDER_OF_VLLM > engine/sim/plan/vllm_options.txt` extracts the list from
vLLM's source: every add_argument("--name") of `vllm serve`, and the fields of its dataclass FrontendArgs.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from engine.config import ConfigError
from engine.sim.memory import Deployment
from prep_common.names import unknown_name

OPTIONS_FILE = Path(__file__).with_name("vllm_options.txt")
_SOURCES = ("engine/arg_utils.py", "entrypoints/launchers/cli_args.py")


def arguments_of(deployment: Deployment) -> list[str]:
    """Return the model and the options of both commands, which name them alike. Raises ConfigError."""
    options: dict[str, object] = {
        "--tensor-parallel-size": deployment.tp if deployment.tp > 1 else None,
        "--pipeline-parallel-size": deployment.pp if deployment.pp > 1 else None,
        "--max-model-len": deployment.max_model_len,
        "--max-num-seqs": deployment.max_num_seqs,
        "--max-num-batched-tokens": deployment.max_num_batched_tokens,
        "--gpu-memory-utilization": f"{deployment.gpu_memory_utilization:g}",
        "--kv-cache-dtype": deployment.kv_cache_dtype if deployment.kv_cache_dtype != "auto" else None,
    }
    dtype = deployment.dtype
    if dtype == "fp8":
        options["--quantization"] = "fp8"  # quantised while loading
    elif dtype not in ("int8", "int4"):
        options["--dtype"] = dtype
    words = [f"{word}" for name, value in options.items() if value is not None for word in (name, value)]
    check_vllm(words)
    return [deployment.model.repository, *words, "--enable-prefix-caching"]


def note_of(deployment: Deployment) -> str:
    """Return what the command needs besides its options, or an empty text."""
    if deployment.dtype in ("int8", "int4"):
        return f"replace the model by a checkpoint quantised to {deployment.dtype}, such as one of llm-compressor"
    return ""


@cache
def vllm_options() -> tuple[str, frozenset[str]]:
    """Return vLLM's version and the options of `vllm serve`."""
    lines = OPTIONS_FILE.read_text(encoding="utf-8").splitlines()
    return lines[0].split()[-1], frozenset(name for line in lines[1:] for name in line.split())


def check_vllm(words: list[str]) -> None:
    """Raise ConfigError for an option that `vllm serve` lacks, with the closest one."""
    version, known = vllm_options()
    for word in words:
        if word.startswith("--") and word not in known:
            where = "vllm serve --help=all lists them"
            raise ConfigError(unknown_name(f"vllm serve {version} has no option", word, known, where))


def extract(vllm: Path) -> list[str]:
    """Return the options of `vllm serve` in the source of a vLLM package."""
    options: set[str] = set()
    for source in _SOURCES:
        tree = ast.parse((vllm / source).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                options.update(_names(node))
            if isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
                fields = [statement.target for statement in node.body if isinstance(statement, ast.AnnAssign)]
                options.update(
                    f"--{field.id.replace('_', '-')}" for field in fields if isinstance(field, ast.Name)
                )
    return sorted(options)


def _names(call: ast.Call) -> Iterator[str]:
    for argument in call.args:
        value = argument.value if isinstance(argument, ast.Constant) else None
        if isinstance(value, str) and value.startswith("--"):
            yield value


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    version = (folder / "_version.py").read_text().partition("version = '")[2].partition("'")[0]
    print(f"# options of vllm serve {version}")
    print("\n".join(extract(folder)))
