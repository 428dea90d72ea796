"""Named models on named hardware, for experiments that price steps with the simulator's cost model."""

from __future__ import annotations

from typing import Any

from engine.sim.hardware import get_hardware
from engine.sim.memory import Deployment
from engine.sim.models import get_model


def deploy(model: str, hardware: str, **settings: Any) -> Deployment:
    """Return a deployment with the engine's defaults and these settings of Deployment."""
    return Deployment(get_model(model), get_hardware(hardware), **settings)
