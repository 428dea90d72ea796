"""Programs that take cores from others, to measure and teach what that does.

with busy_programs(1):
    ...                     one core is taken
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from subprocess import PIPE

from prep_common.child_process import ChildProcess


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Run `count` processes that compute without a pause, and end them; they end with this process, too."""
    with ExitStack() as running:
        for number in range(count):
            name, module = f"busy program {number + 1}", "prep_common.busy"
            running.enter_context(
                ChildProcess("prep_common.parent_link", name=name, args=[module], stdin=PIPE)
            )
        yield


if __name__ == "__main__":
    while True:
        pass
