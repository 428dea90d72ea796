"""The child process that runs one stage of a drill, so that the pages of this server do not disturb its load.

It gets (stage, load), and sends ("tell", text) now and then, at last ("record", Record) or ("error", text). SIGTERM, or
the end of the parent, ends its servers and removes their folder.
"""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from threading import Thread

from engine.config import ConfigError
from interview.drills.running import run
from prep_common.parent_link import serve_pipe


def _serve(connection: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stage, load = connection.recv()
    Thread(target=_end_with_parent, args=[connection], daemon=True).start()
    try:
        connection.send(("record", run(stage, load, lambda text: connection.send(("tell", text)))))
    except ConfigError as error:
        connection.send(("error", str(error)))
    except KeyboardInterrupt:
        pass


def _end_with_parent(connection: Connection) -> None:
    connection.poll(None)  # the parent sends nothing more, so this returns when it hangs up
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    serve_pipe(_serve)
