"""The guest process: confine itself, load the learner's files, do what the checker asks.

    python -I -S main.py ROOT PARENT READ_FD WRITE_FD      one guest
    python -I -S main.py ROOT PARENT SOCKET_FD             a nursery, see nursery.py

A guest holds learner code and nothing of the checker, so whatever learner code does to this process, all that leaves
it is values.
"""

import sys

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])

import os
from importlib import import_module
from typing import Any

from prep_common.guest import audit, landlock, limits
from prep_common.guest.link import Link
from prep_common.guest.server import Server


def main() -> None:
    sys.dont_write_bytecode = True
    ends = [int(end) for end in sys.argv[3:]]
    if len(ends) == 2:
        limits.end_with(int(sys.argv[2]))
        serve(*ends)
    else:
        from prep_common.guest import nursery

        nursery.run(ends[0], serve)


def serve(read: int, write: int) -> None:
    """Be a guest for the checker behind these pipes."""
    link = Link(read, write)
    link.objects = server = Server(link)
    [number, _, _, setup] = link.read()
    # Ours, then installed packages.
    sys.path[:] = [setup["scratch"], *_libraries(), sys.argv[1], *setup["path"]]
    layers = _confine(setup)
    for name in setup["imports"]:
        try:
            import_module(name)
        except ImportError as error:
            return link.write([number, "error", server.describe(error)])
    layers.append(audit.confine(setup["readable"], setup["listable"], setup["writable"]))
    link.write([number, "ok", [layer for layer in layers if layer]])
    server.serve()


def _libraries() -> list[str]:
    """Return the standard library's part of the path: what this interpreter began with."""
    return [path for path in sys.path if path != sys.argv[1] and "-packages" not in path]


def _confine(setup: dict[str, Any]) -> list[str]:
    return [
        limits.confine(setup["megabytes"], setup["disk_megabytes"]),
        landlock.confine(setup["readable"], setup["listable"], setup["writable"]),
    ]


if __name__ == "__main__":
    main()
    os._exit(0)
