"""Run a program that reads learner text but never runs it, a compiler: few files, limits, and then exec.

    python -I -S confined.py ROOT PARENT SCRATCH READABLE... -- COMMAND...

The program reads and runs what is below READABLE, lists names below ROOT, where Python looks for packages, and writes
to SCRATCH. Without it, `#include` or `.incbin` in a learner's source could bring in any file of the checkout.
"""

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

from prep_common.guest import landlock, limits

MEGABYTES = 2_048
DISK_MEGABYTES = 64


def main() -> None:
    _, root, parent, scratch, *rest = sys.argv
    split = rest.index("--")
    limits.end_with(int(parent))
    limits.confine(MEGABYTES, DISK_MEGABYTES)
    os.chdir(scratch)
    landlock.confine(rest[:split], [root], [scratch, "/dev/null"], runnable=rest[:split])
    os.execv(rest[split + 1], rest[split + 1 :])


if __name__ == "__main__":
    main()
