"""Record the evidence of incident drills and their healthy twins, and say which faults the trees name.

python -m tests.diagnosis.record_drills [ID ...] [--seed N]      runs them, about 25 s each
python -m tests.diagnosis.record_drills --judge                  judges the recordings, without a server
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import uvloop

from engine.server.diagnosis.collect import Sources, collect
from engine.server.diagnosis.evidence import Evidence, load, save
from engine.server.diagnosis.verdict import CannotJudge, diagnose
from interview.drills import running
from interview.drills.drill import Load, Stage, load_drills

FOLDER = Path(__file__).parent / "recorded_drills"
IDLE_S = 1.0
"""The window ends after the last arrival."""


def recorded(stage: Stage, load: Load) -> Evidence:
    """Run a stage under its load, beside a diagnosis with all inputs."""
    with running.started(stage) as rig, ThreadPoolExecutor(1) as beside:
        log = rig.folder / "0.requests"
        log.touch()
        gateway = "" if rig.entry in rig.urls else rig.entry
        sources = Sources(rig.urls[0], window_s=load.seconds + IDLE_S, log=log, probe=True, gateway=gateway)
        watching = beside.submit(collect, sources)
        uvloop.run(running._watched(rig, load, lambda text: None))
        return watching.result()


def record(name: str, seed: int | None) -> None:
    """Run a drill with its fault and healthy, or healthy only under another seed."""
    drill = load_drills().entries[name]
    stage, load = drill.changed()
    if seed is not None:
        load = load.model_copy(update={"seed": seed})
        save(recorded(stage, load), FOLDER / f"{name}.healthy{seed}.gz")
        return
    save(recorded(stage, load), FOLDER / f"{name}.healthy.gz")
    evidence = recorded(*drill.changed(drill.fault))
    save(replace(evidence, label=drill.cause), FOLDER / f"{name}.fault.gz")


def judged(path: Path) -> tuple[str, str]:
    """Return the cause of a recording, and the cause that the trees name; "" for none."""
    evidence, twin = load(path), FOLDER / f"{path.name.split('.')[0]}.healthy.gz"
    try:
        found = diagnose(evidence, load(twin))
    except CannotJudge as error:
        return evidence.label, f"cannot judge: {error}"
    return evidence.label, found.cause or ""


def main() -> None:
    """Record the drills named on the command line, or all; then judge all recordings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ids", nargs="*")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--judge", action="store_true")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for name in [] if arguments.judge else arguments.ids or load_drills().entries:
        record(name, arguments.seed)
    right = {path.name: judged(path) for path in sorted(FOLDER.glob("*.gz"))}
    for name, (cause, found) in right.items():
        print(f"{'ok' if cause == found else 'NO':3} {name:40} {found or 'nothing wrong'}")
    print(sum(cause == found for cause, found in right.values()), "of", len(right))


if __name__ == "__main__":
    main()
