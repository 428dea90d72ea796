"""The JavaScript of the charts: what computes, by `node --test`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).with_name("charts.test.mjs")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node: apt-get install nodejs")
def test_the_charts_pass_their_own_tests() -> None:
    done = subprocess.run(["node", "--test", str(TESTS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
