"""Guests that a nursery forks behave as other guests do."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import psutil
import pytest

from prep_common.platforms import can_fork
from prep_common.sandbox import Guest, GuestError, GuestStopped, Limits
from prep_common.sandbox.nursery import nursery

pytestmark = pytest.mark.skipif(not can_fork(), reason="guests come from a nursery only where it may fork")
IMPORTS = ("decimal",)
"""Any module does."""


def _guests() -> list[int]:
    return [child.pid for child in psutil.Process(nursery(IMPORTS, {}).pid).children()]


def test_a_guest_is_a_fresh_process_each_time() -> None:
    source = "import decimal\ndef f():\n    decimal.kept = getattr(decimal, 'kept', 0) + 1\n    return decimal.kept"
    for _ in range(2):
        with Guest({"learner.py": source}, imports=IMPORTS) as guest:
            assert guest.call("f") == 1
            assert len(_guests()) == 1
    assert _guests() == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("os._exit(3)", "exit code 3"),
        ("os.abort()", "SIGABRT"),
        ("time.sleep(100)", "stopped after 0.5 s"),
        ("os.closerange(3, 50); time.sleep(100)", "closed the checker's pipe"),
    ],
)
def test_a_guest_is_stopped(body: str, why: str) -> None:
    source = f"import os, time\ndef f(): {body}"
    with (
        Guest({"learner.py": source}, limits=Limits(seconds=0.5), imports=IMPORTS) as guest,
        pytest.raises(GuestStopped, match=why),
    ):
        guest.call("f")
    assert _guests() == []


def test_a_guest_reads_nothing_of_the_checker(tmp_path: Path) -> None:
    source = "import os\ndef read(path): return open(path).read()\ndef signal(pid): os.kill(pid, 9)"
    with Guest({"learner.py": source}, imports=IMPORTS) as guest:
        for pid in (os.getpid(), os.getppid(), nursery(IMPORTS, {}).pid):
            with pytest.raises(GuestError):
                guest.call("read", f"/proc/{pid}/environ")
            with pytest.raises(GuestError):
                guest.call("signal", pid)
        (tmp_path / "x").write_text("")
        with pytest.raises(GuestError):
            guest.call("read", str(tmp_path / "x"))


def test_a_nursery_that_was_killed_is_replaced() -> None:
    nursery(IMPORTS, {}).kill()
    with Guest({"learner.py": "x = 1"}, imports=IMPORTS) as guest:
        assert guest.get("x") == 1


def test_a_module_that_is_missing_is_named() -> None:
    with pytest.raises(GuestError, match="no_such_module"):
        Guest({"learner.py": ""}, imports=("no_such_module",))


def test_a_nursery_outlives_the_thread_that_started_it() -> None:
    nursery(IMPORTS, {}).kill()
    thread = Thread(target=nursery, args=(IMPORTS, {}))
    thread.start()
    thread.join()
    first = nursery(IMPORTS, {}).pid
    with Guest({"learner.py": "x = 1"}, imports=IMPORTS) as guest:
        assert guest.get("x") == 1 and nursery(IMPORTS, {}).pid == first
