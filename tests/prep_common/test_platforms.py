"""Features that only Linux has: `prep_common.platforms` lists their users, and the users work without."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from prep_common import platforms
from prep_common.guest import landlock
from prep_common.sandbox import nursery

ROOT = Path(__file__).resolve().parents[2]
PATTERNS = {
    "/proc": r"[\"']/proc/",
    "fork": r"os\.fork\(|get_context\(\"fork\"\)",
    "Landlock": r"\b444, 445, 446\b",
    "prctl": r"\.prctl\(",
}
WITHOUT_PROC = """
import os, sys, time
import psutil
from app.bench.sides import side_protocol
from app.bench.upgrade_sides import _peak_of
from kernels.bench.limits import _cpu
from kernels.cpu import build
from prep_common import process_family, stages
from prep_common.sandbox import process

hidden = []
def hide(event, args):
    if event in ("open", "os.scandir") and str(args[0]).startswith("/proc/"):
        if "psutil" not in sys._getframe(1).f_code.co_filename:
            hidden.append(args[0])
            raise FileNotFoundError(args[0])
sys.addaudithook(hide)
assert 0 <= time.time() - stages.process_began() < 3600
assert side_protocol.peak_rss_bytes() > 0 and side_protocol.peak_rss_bytes(os.getppid()) == 0
assert _peak_of(psutil.Process()) > 1 << 20
assert _cpu() and build._processor()
assert "lib" in (build._openmp_runtime() or "lib")
assert process._seconds_queued("/proc/thread-self") == 0
assert psutil.Process() in process_family.family(psutil.Process())
assert process._megabytes_of(".", [psutil.Process()]) >= 0
print(len(hidden))
"""


def test_what_needs_linux_is_listed() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = {
        name: (ROOT / name).read_text() for name in listed.stdout.split() if not name.startswith("tests/")
    }
    for need, pattern in PATTERNS.items():
        users = {name for name, text in texts.items() if re.search(pattern, text)}
        assert users == platforms.NEEDS[need].keys(), need


def test_everything_that_reads_proc_works_without() -> None:
    command = [sys.executable, "-c", WITHOUT_PROC]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    finished = subprocess.run(command, cwd=ROOT / "deploy", capture_output=True, text=True, env=environment)
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout) >= 7


def test_on_macos_nothing_forks_and_the_kernel_confines_no_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not platforms.can_fork() and not nursery.is_useful(["torch"])
    assert landlock.confine(["/"], [], []) == ""
