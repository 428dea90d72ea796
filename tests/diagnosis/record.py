"""Record the evidence of drills and their healthy twins, which the tests of the trees read.

    python -m tests.diagnosis.record [ID ...] [--seed N]

Each drill runs twice, about 15 s each: with its fault, and healthy. A seed other than the drill's own records only a
healthy twin under other arrivals.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import uvloop

from engine.server.diagnosis.collect import Sources, collect
from engine.server.diagnosis.evidence import Evidence, save
from interview.drills import running
from interview.drills.drill import Load, Stage, load_drills

FOLDER = Path(__file__).parent / "recordings"
IDLE_S = 2.0
"""The window ends after the load, so that a leak shows."""


def recorded(stage: Stage, load: Load) -> Evidence:
    """Run a stage under its load, beside a diagnosis with all inputs."""
    with running.started(stage) as rig, ThreadPoolExecutor(1) as beside:
        gateway = rig.entry if rig.entry not in rig.urls else ""
        log = rig.folder / "0.requests"
        log.touch()
        sources = Sources(rig.urls[0], window_s=load.seconds + IDLE_S, log=log, probe=True, gateway=gateway)
        watching = beside.submit(collect, sources)
        uvloop.run(running._watched(rig, load, lambda text: None))
        return watching.result()


def main() -> None:
    """Record the drills named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*")
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    drills = load_drills().entries
    for name in arguments.ids or drills:
        drill = drills[name]
        healthy = drill.changed()
        if arguments.seed is not None:
            load = healthy[1].model_copy(update={"seed": arguments.seed})
            save(recorded(healthy[0], load), FOLDER / f"{name}.healthy{arguments.seed}.gz")
            continue
        for kind, (stage, load) in (("healthy", healthy), ("fault", drill.changed(drill.fault))):
            label = drill.cause if kind == "fault" else ""
            save(replace(recorded(stage, load), label=label), FOLDER / f"{name}.{kind}.gz")


if __name__ == "__main__":
    main()
