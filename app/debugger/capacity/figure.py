"""Numbers with their explanations, and their formatting."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from app.debugger.capacity.scenario import Scenario
from app.debugger.source_lines import definition_of, find_line
from engine.sim.plan.quantity import CURRENCIES
from engine.sim.steady_state import SteadyState
from prep_common.text import GIB, gib


@dataclass(frozen=True)
class Figure:
    """One number and its explanation."""

    name: str
    title: str
    value: float
    unit: str
    """bytes, seconds, tokens, requests, requests/s, share, GPUs, a currency …"""
    formula: str
    filled: str
    """The formula with this scenario's numbers and units."""
    source: str
    """path:line (function) that states or computes the same."""
    leaves_out: str
    parents: tuple[str, ...] = ()
    """Names of the figures in its formula."""

    def shown(self) -> str:
        """The formatted value."""
        return show(self.value, self.unit)


@dataclass
class Capacity:
    """All figures of a scenario, and conclusions in sentences."""

    scenario: Scenario
    figures: dict[str, Figure] = field(default_factory=dict)
    state: SteadyState | None = None
    """The state of one replica; None if the model does not fit."""
    problem: str = ""
    """Reason why the scenario is not possible, by how much, and what would help."""
    verdicts: list[str] = field(default_factory=list)

    @property
    def root(self) -> str:
        """The final figure."""
        return list(self.figures)[-1]

    def value(self, name: str) -> float:
        return self.figures[name].value

    def add(
        self, name: str, title: str, value: float, unit: str, formula: str, filled: str, source: Any,
        leaves_out: str, parents: tuple[str, ...] = (),
    ) -> float:  # fmt: skip
        """Add a figure. source: a function or class, or (path, fragment of its line), or text."""
        if isinstance(source, tuple):
            where = str(find_line(*source))
        else:
            where = source if isinstance(source, str) else definition_of(source)
        self.figures[name] = Figure(name, title, value, unit, formula, filled, where, leaves_out, parents)
        return value


def gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:,.2f} GB"


def ms(seconds: float) -> str:
    """Return a time with the digits that a formula needs to come to its value."""
    if not math.isfinite(seconds):
        return "no bound"
    if seconds >= 10:
        return f"{seconds:,.1f} s"
    return f"{1000 * seconds:,.2f} ms" if seconds < 0.1 else f"{1000 * seconds:,.0f} ms"


def _bytes(value: float) -> str:
    if abs(value) >= 0.01 * GIB:
        return gib(value, 2)
    return f"{value / 1024:,.1f} KiB" if value >= 1024 else f"{value:,.0f} B"


_SHOWN: dict[str, Callable[[float], str]] = {
    "bytes": _bytes,
    "seconds": ms,
    "share": lambda value: f"{100 * value:,.1f} %",
    "requests/s": lambda value: f"{value:,.2f} requests/s" if value < 100 else f"{value:,.0f} requests/s",
    "parameters": lambda value: (
        f"{value / 1e9:,.2f} billion" if value >= 1e8 else f"{value / 1e6:,.2f} million"
    ),
}


def money(value: float, currency: str) -> str:
    """Return $2.50, $1,234 or EUR 0.0412."""
    sign = currency if currency == "$" else f"{currency} "
    return (
        f"{sign}{value:,.0f}"
        if value >= 10_000
        else f"{sign}{value:,.{2 if value >= 0.1 or not value else 4}f}"
    )


def show(value: float, unit: str) -> str:
    """Format a number with its unit."""
    if unit in CURRENCIES.values():
        return money(value, unit)
    if unit in _SHOWN:
        return _SHOWN[unit](value)
    if value == 1:
        return f"1 {unit.removesuffix('s')}"
    return f"{value:,.0f} {unit}" if value >= 100 or value == int(value) else f"{value:,.1f} {unit}"
