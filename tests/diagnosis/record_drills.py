"""Record the evidence of incident drills and their healthy twins, and say which faults the trees name.

python -m tests.diagnosis.record_drills [ID ...]                  fault and healthy twin, about 25 s per drill
python -m tests.diagnosis.record_drills [ID ...] --seed N         both again under other arrivals
python -m tests.diagnosis.record_drills [ID ...] --only healthy   one of the two
python -m tests.diagnosis.record_drills --judge                   judges the recordings, without a server
"""

from __future__ import annotations

import argparse
from collections import Counter
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
KINDS = ("healthy", "fault")
NOTHING = "nothing wrong"


def recorded(stage: Stage, load: Load) -> Evidence:
    """Run a stage under its load, beside a diagnosis with all inputs that its operator has."""
    with running.started(stage) as rig, ThreadPoolExecutor(1) as beside:
        logs = tuple(rig.paths("requests"))
        for path in logs:
            path.touch()
        sources = Sources(
            tuple(rig.urls),
            window_s=load.seconds + IDLE_S,
            logs=logs,
            server_log=rig.paths("log")[0],
            probe=True,
            gateway="" if rig.entry in rig.urls else rig.entry,
        )
        watching = beside.submit(collect, sources)
        uvloop.run(running.watched(rig, load))
        return watching.result()


def record(name: str, kinds: list[str], seed: int | None) -> None:
    """Run a drill healthy, with its fault, or both, and write the evidence."""
    drill = load_drills().entries[name]
    for kind in kinds:
        stage, load = drill.changed(*([drill.fault] if kind == "fault" else []))
        if seed is not None:
            load = load.model_copy(update={"seed": seed})
        evidence = replace(recorded(stage, load), label=drill.cause if kind == "fault" else "")
        save(evidence, FOLDER / f"{name}.{kind}{'' if seed is None else seed}.gz")


def answer(path: Path, *, alone: bool = False) -> str:
    """Return the cause that the trees name for a recording, "maybe" and the candidates, or "nothing wrong".

    alone: with /metrics alone, as `prep diagnose URL` has it; else with all inputs and the healthy twin as baseline.
    """
    evidence, baseline = load(path), load(FOLDER / f"{path.name.split('.')[0]}.healthy.gz")
    try:
        found = (
            diagnose(Evidence(evidence.looks, evidence.ended_at)) if alone else diagnose(evidence, baseline)
        )
    except CannotJudge as error:
        return f"cannot judge: {error}"
    return found.cause or (f"maybe {', '.join(found.candidates)}" if found.candidates else NOTHING)


def table() -> list[str]:
    """Return a line per recording: the answer with all inputs, and that with /metrics alone; then counts of both."""
    lines, counts = [], Counter[str]()
    for path in sorted(FOLDER.glob("*.gz")):
        expected = load(path).label or NOTHING
        whole, alone = answer(path), answer(path, alone=True)
        kind = "healthy" if expected == NOTHING else "faulty"
        told = next(
            (what for what, is_so in (
                ("right", alone == expected),
                ("among the candidates", expected in alone),
                ("not among the candidates", alone.startswith("maybe")),
                ("nothing wrong", alone == NOTHING),
            ) if is_so),
            "WRONG",
        )  # fmt: skip
        counts[f"{kind}, all inputs: {'right' if whole == expected else 'WRONG'}"] += 1
        counts[f"{kind}, /metrics alone: {told}"] += 1
        lines.append(
            f"{'ok' if whole == expected else 'NO':3}{path.name.removesuffix('.gz'):28} {whole:20} | {alone}"
        )
    return lines + [f"{number:4} {what}" for what, number in sorted(counts.items())]


def main() -> None:
    """Record the drills named on the command line, or all; then judge all recordings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("ids", nargs="*")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--judge", action="store_true")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for name in [] if arguments.judge else arguments.ids or load_drills().entries:
        record(name, [arguments.only] if arguments.only else list(KINDS), arguments.seed)
    print("\n".join(table()))


if __name__ == "__main__":
    main()
