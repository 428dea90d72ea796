"""Programs that take cores: they compute, and end with the block."""

from __future__ import annotations

import psutil

from prep_common.busy import busy_programs


def test_busy_programs_compute_until_the_block_ends() -> None:
    me = psutil.Process()
    before = set(me.children())
    with busy_programs(2):
        started = [child for child in me.children() if child not in before]
        assert len(started) == 2
        while min(child.cpu_times().user for child in started) < 0.1:
            assert all(child.status() != psutil.STATUS_ZOMBIE for child in started)
    assert not any(child.is_running() for child in started)
