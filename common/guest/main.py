"""The guest process: confine itself, load the learner's files, do what the checker asks.

Started as `python -I -S main.py ROOT READ_FD WRITE_FD PARENT`. It holds learner code and nothing of the checker, so
whatever learner code does to this process, all that leaves it is values.
"""

import sys

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

import os
from importlib import import_module
from typing import Any

from common.guest import audit, landlock, limits, seccomp
from common.guest.link import Link
from common.guest.server import Server


def main() -> None:
    read, write, parent = map(int, sys.argv[2:5])
    limits.end_with(parent)
    link = Link(read, write)
    link.objects = server = Server(link)
    [number, _, _, setup] = link.read()
    sys.dont_write_bytecode = True
    sys.path[:] = [setup["scratch"], *sys.path[1:], *setup["path"], sys.argv[1]]
    layers = _confine(setup)
    for name in setup["imports"]:
        try:
            import_module(name)
        except ImportError as error:
            return link.write([number, "error", server.describe(error)])
    layers.append(audit.confine(setup["readable"], setup["listable"], setup["writable"]))
    link.write([number, "ok", [layer for layer in layers if layer]])
    server.serve()


def _confine(setup: dict[str, Any]) -> list[str]:
    limits.drop_capabilities()
    return [
        limits.confine(setup["megabytes"], setup["disk_megabytes"]),
        landlock.confine(setup["readable"], setup["listable"], setup["writable"]),
        seccomp.confine(),
    ]


if __name__ == "__main__":
    main()
    os._exit(0)
