"""Record the shipped runs: `python -m app.debugger.recorded.record [id ...]` in the checkout's root.

The decisions come out the same each time; clocks, machine and code revision are those of the recording.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from app.debugger.recorded.scenes import SCENES, Scene
from engine.config import EngineArgs
from engine.engine_core import EngineCore
from engine.frontend.llm_engine import LLMEngine

HERE = Path(__file__).parent
MAX_STEPS = 1000


def record(scene: Scene, path: Path) -> None:
    """Run a scene on the engine with its trace written to a file."""
    llm = LLMEngine.from_args(
        EngineArgs.create(model="shop", device="cpu", trace=str(path), **scene.settings)
    )
    try:
        for adapter in scene.adapters:
            llm.load_lora_adapter(adapter, adapter)
        _run(llm, scene)
    finally:
        llm.shutdown()


def _run(llm: LLMEngine, scene: Scene) -> None:
    core = llm.engine_core
    assert isinstance(core, EngineCore)
    due = sorted(scene.arrivals, key=lambda arrival: arrival.step)
    for step in range(MAX_STEPS):
        while due and (due[0].step <= step or not core.has_unfinished()):
            arrival = due.pop(0)
            for request in llm.read_requests(arrival.request_id, arrival.wish):
                core.add_request(request)
        core.abort([name for name, when in scene.aborts.items() if when == step])
        if not due and not core.has_unfinished():
            return
        core.step()
    raise RuntimeError(f"the scene did not end within {MAX_STEPS} steps")


def main(names: list[str]) -> None:
    os.chdir(HERE)  # a trace contains its file name; a path would reveal the location of this checkout
    for name in names or SCENES:
        path = Path(f"{name}.itrace")
        path.unlink(missing_ok=True)
        record(SCENES[name](), path)
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
