"""The words that the tests of Marlin's layout expect are those that vLLM's own functions pack."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.quant.test_marlin_layout import CASES

PYTHON = os.environ.get("PREP_VLLM_PYTHON", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PYTHON, reason="PREP_VLLM_PYTHON names no Python with vLLM; see tests/peers/README.md"
    ),
]


def test_vllm_packs_the_expected_words_and_scales() -> None:
    script = Path(__file__).with_name("vllm_marlin.py")
    done = subprocess.run([PYTHON, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == CASES
