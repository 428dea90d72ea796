"""Measured rates of this machine, stored for later runs.

One entry per model and dtype: the rates that fit the cost model's step times to the live engine. They are stored in
the user's cache folder, since they hold for one machine only. `app/bench/calibrate.py` measures; this file is the part
that the simulator needs, without torch.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.sim.cost import Rates
from engine.sim.memory import Deployment
from engine.sim.models import MODELS, ModelShape
from prep_common.paths import cache_dir, write_atomically

FORMAT = 2


@dataclass(frozen=True)
class Calibration:
    """The rates of one model in one dtype on one machine, and how well they fit."""

    model: str
    dtype: str
    rates: Rates
    threads: int
    num_steps: int  # number of timed steps
    fit_error: float  # median over the kinds of timed steps: |fitted - measured| / measured


def calibration_file() -> Path:
    return cache_dir() / "simulator.json"


def save_calibration(calibration: Calibration) -> Path:
    """Store a calibration, replacing an earlier one of the same model and dtype."""
    known = load_calibrations() | {(calibration.model, calibration.dtype): calibration}
    path = calibration_file()
    content = {"format": FORMAT, "measured": [asdict(entry) for entry in known.values()]}
    write_atomically(path, json.dumps(content, indent=2))
    return path


def load_calibrations() -> dict[tuple[str, str], Calibration]:
    """Return the calibrations by model and dtype; empty if there are none or the file is unreadable."""
    try:
        content = json.loads(calibration_file().read_text())
        if content["format"] != FORMAT:
            return {}
        measured = [calibration_from(entry) for entry in content["measured"]]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
    return {(entry.model, entry.dtype): entry for entry in measured}


def calibration_from(entry: dict[str, object]) -> Calibration:
    """Return the calibration of a JSON object that `asdict` made."""
    return Calibration(**(entry | {"rates": Rates(**entry["rates"])}))  # type: ignore[arg-type]


def rates_on_cpu(shape: ModelShape, dtype: str) -> Calibration | None:
    """Return the calibration of this model in this dtype, else of the measured model nearest in size, else None."""
    known = {model: entry for (model, measured), entry in load_calibrations().items() if measured == dtype}
    if shape.name in known:
        return known[shape.name]
    sizes = {name: MODELS[name].num_params for name in known if name in MODELS}
    if not sizes:
        return None
    return known[min(sizes, key=lambda name: abs(math.log(sizes[name] / shape.num_params)))]


def calibrated_rates(deployment: Deployment) -> Rates | None:
    """Return what was measured on this CPU; None for datasheet figures and typical efficiencies."""
    calibration = rates_on_cpu(deployment.model, deployment.dtype) if deployment.hardware.is_cpu else None
    return calibration.rates if calibration else None
