"""The JavaScript of the charts and of the page Mock: what computes, by `node --test`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = [Path(__file__).with_name(name) for name in ("charts.test.mjs", "mock.test.mjs")]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node: apt-get install nodejs")
def test_the_scripts_pass_their_own_tests() -> None:
    done = subprocess.run(["node", "--test", *map(str, TESTS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
