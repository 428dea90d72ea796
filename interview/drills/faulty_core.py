"""The engine's process of a drill's server: that of `prep serve`, after the hooks."""

from __future__ import annotations

from engine.exec.core_process import serve
from interview.drills import faults
from prep_common.parent_link import serve_pipe

if __name__ == "__main__":
    faults.apply("core")
    serve_pipe(serve)
