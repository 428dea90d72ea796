"""Prove drills: their signatures differ, the evidence decides, and the fix restores the objective.

`prep drill check --write` runs all stages of a drill and keeps the figures in signatures.json, from which tests prove
that signatures are pairwise distinct without a server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interview.drills.drill import Drill
from interview.drills.figures import FIGURES, Figures, Signature, signature
from prep_common.paths import write_atomically

if TYPE_CHECKING:
    from interview.drills.running import Tell

FILE = Path(__file__).parent / "signatures.json"


@dataclass(frozen=True)
class Proof:
    """Results of the runs of a drill."""

    healthy: Figures
    faulty: Figures
    good: dict[str, float]
    """"healthy", "faulty" and each fix, as its number -> share of good requests."""

    @property
    def signature(self) -> Signature:
        return signature(self.faulty, self.healthy)

    def problems(self, drill: Drill) -> list[str]:
        """Return what keeps the drill from being fair."""
        problems, share = [], drill.objective.share
        if self.good["healthy"] < share:
            problems.append(
                f"the healthy twin misses its objective: {self.good['healthy']:.0%} of {share:.0%}"
            )
        if self.good["faulty"] >= share:
            problems.append(
                f"the fault does not break the objective: {self.good['faulty']:.0%} of {share:.0%}"
            )
        for number in drill.right_fixes:
            if self.good[str(number)] < share:
                problems.append(
                    f"fix {number} does not restore it: {self.good[str(number)]:.0%} of {share:.0%}"
                )
        for number, fix in enumerate(drill.fixes, 1):
            if not fix.helps and self.good.get(str(number), 0.0) >= share:
                problems.append(f"fix {number} restores it, too, and is not marked with helps")
        for name, sign in drill.evidence.items():
            if self.signature.get(name, 0) != sign:
                pair = f"{self.faulty[name]:,.2f} against {self.healthy[name]:,.2f}"
                problems.append(f"evidence {name} does not go {'up' if sign > 0 else 'down'}: {pair}")
        return problems


def prove(drill: Drill, tell: Tell = lambda text: None) -> Proof:
    """Run the healthy twin, the faulty stage and each fix."""
    from interview.drills.measure import figures, good_share
    from interview.drills.running import run  # needs the libraries of servers; reading proofs does not

    good: dict[str, float] = {}
    seen: dict[str, Figures] = {}
    changes = {"healthy": [], "faulty": [drill.fault]} | {
        str(number): [drill.fault, fix] for number, fix in enumerate(drill.fixes, 1)
    }
    for name, change in changes.items():
        stage, load = drill.changed(*change)
        record = run(stage, load, lambda text, name=name: tell(f"{drill.id}, {name}: {text}"))  # type: ignore[misc]
        good[name] = round(good_share(record, load, drill.objective), 3)
        seen[name] = figures(record, load)
    return Proof(seen["healthy"], seen["faulty"], good)


def recorded() -> dict[str, Proof]:
    """Return the proofs of signatures.json."""
    proofs: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    whole = dict.fromkeys(FIGURES, 0.0)
    return {
        name: Proof(whole | proof["healthy"], whole | proof["faulty"], proof["good"])
        for name, proof in proofs.items()
    }


def write(proofs: dict[str, Proof]) -> None:
    """Replace these proofs in signatures.json. Figures that are 0 are left out."""
    kept = recorded() | proofs
    plain = {
        name: {
            "signature": proof.signature,
            "good": proof.good,
            "healthy": {figure: value for figure, value in proof.healthy.items() if value},
            "faulty": {figure: value for figure, value in proof.faulty.items() if value},
        }
        for name, proof in sorted(kept.items())
    }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(proof)}" for name, proof in plain.items())
    write_atomically(FILE, "{\n" + lines + "\n}\n")


def same_signature(proofs: dict[str, Proof]) -> list[tuple[str, str]]:
    """Return pairs of drills whose directions agree in every figure that has one in either."""
    return [
        (first, second)
        for first, second in combinations(sorted(proofs), 2)
        if proofs[first].signature == proofs[second].signature
    ]
