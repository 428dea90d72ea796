"""The tests in `triton/`, in processes of their own (see `triton/conftest.py`), in shards that can run side by side."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has wheels for Linux only")

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((Path(__file__).parent / "triton").glob("test_*.py"))
SHARDS = 2
TIMEOUT_S = 1200  # a hang; a busy machine needs 300


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_the_triton_kernels_in_the_interpreter(shard: int) -> None:
    files = [str(path.relative_to(ROOT)) for path in FILES[shard::SHARDS]]
    finished = run_interpreted("-q", "--no-header", *files)
    if finished.returncode != 0:
        pytest.fail(f"TRITON_INTERPRET=1 pytest {' '.join(files)}\n\n{finished.stdout}", pytrace=False)


@pytest.mark.slow
def test_a_failing_kernel_test_fails_here_with_its_own_output(tmp_path: Path) -> None:
    failing = tmp_path / "test_failing.py"
    failing.write_text("def test_it():\n    assert 'found' == 'wanted'\n")
    finished = run_interpreted("-q", "--rootdir", str(tmp_path), "-c", os.devnull, str(failing))
    assert finished.returncode == 1
    assert "AssertionError: assert 'found' == 'wanted'" in finished.stdout


def run_interpreted(*arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in a process that interprets Triton kernels, untouched by the settings of this one (xdist's too)."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
