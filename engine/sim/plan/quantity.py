"""Numbers with units, in one grammar: [currency] number[k|M|B] [unit].

    10 req/s   1.2M req/day   200 ms   6,500 km   80 GB/s   70 %   EUR 2.50/h   $0.60/Mtok   1,000 tokens

Each kind of quantity has one unit in which its value is stored; a number without a unit is accepted only for kinds that
have none (tokens, shares and plain numbers).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from prep_common.names import unknown_name

_TIMES = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86_400.0}
_REQUESTS = ("req", "requests", "request")
_BYTES = {
    "B": 1.0,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
}
_TOKENS = {"tok": 1.0, "token": 1.0, "tokens": 1.0}
CURRENCIES = {
    "$": "$",
    "USD": "$",
    "EUR": "EUR",
    "€": "EUR",
    "GBP": "GBP",
    "£": "GBP",
    "JPY": "JPY",
    "CHF": "CHF",
}
MOST = 1e15


class Kind(NamedTuple):
    """A kind of quantity: units and their factors, bounds in the stored unit, and an example."""

    units: dict[str, float]
    low: float
    high: float
    example: str
    has_currency: bool = False
    needs_unit: bool = True


KINDS = {
    "rate": Kind(
        {f"{name}/{per}": 1 / seconds for name in _REQUESTS for per, seconds in _TIMES.items()}
        | {"rps": 1.0, "rpm": 1 / 60},
        1e-6, 1e6, "10 req/s",
    ),
    "time": Kind({"ms": 1e-3, "us": 1e-6, **_TIMES}, 0, 1e6, "200 ms"),
    "distance": Kind({"km": 1.0, "mi": 1.609344}, 0, 20_040, "6,500 km"),  # half of the equator at most
    "speed": Kind({f"{name}/s": factor for name, factor in _BYTES.items()}, 1, 1e14, "2 GB/s"),
    "tokens": Kind(_TOKENS, 1, 1e6, "1,000 tokens", needs_unit=False),
    "share": Kind({"%": 0.01}, 0, 1, "70 %", needs_unit=False),
    "number": Kind({"x": 1.0}, 0, MOST, "3", needs_unit=False),
    "per hour": Kind({"/h": 1.0}, 0, 1e4, "EUR 2.50/h", has_currency=True),
    "per month": Kind({"/month": 1.0, "/year": 1 / 12}, 0, 1e9, "EUR 8,000/month", has_currency=True),
    "per Mtok": Kind({"/Mtok": 1.0, "/ktok": 1e3}, 0, 1e4, "$0.60/Mtok", has_currency=True),
}  # fmt: skip
_GRAMMAR = re.compile(
    r"(?P<before>[^\d\s.+-]*)\s*(?P<number>[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e[+-]?\d+)?)"
    r"(?P<scale>(?:[kMB](?![a-zA-Z]))?)\s*(?P<unit>.*)"
)
_SCALES = {"": 1.0, "k": 1e3, "M": 1e6, "B": 1e9}


@dataclass(frozen=True)
class Money:
    """An amount in a currency; the kind of quantity says per what."""

    amount: float
    currency: str


def parse(value: Any, kind: str) -> float:
    """Return the value in the kind's unit. Raises ValueError with the value and an example."""
    return _read(value, kind)[0]


def parse_money(value: Any, kind: str) -> Money:
    """Return an amount. Raises ValueError."""
    amount, currency = _read(value, kind)
    return Money(amount, currency)


def _read(value: Any, kind: str) -> tuple[float, str]:
    rule = KINDS[kind]
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(f"expected a quantity such as {rule.example!r}, got {value!r}")
    match = _GRAMMAR.fullmatch(f"{value}".strip())
    if match is None or not match["number"].strip("+-"):
        raise ValueError(f"{value!r} is not a number with a unit; write for example {rule.example!r}")
    before, unit = match["before"], match["unit"].strip()
    factor = _factor(unit, rule, value)
    currency = CURRENCIES.get(before, "")
    if rule.has_currency and not currency:
        raise ValueError(
            f"{value!r} names no known currency ({', '.join(CURRENCIES)}); write {rule.example!r}"
        )
    if before and not rule.has_currency:
        raise ValueError(
            f"{before!r} before the number of {value!r} has no meaning here; write {rule.example!r}"
        )
    number = float(match["number"].replace(",", "")) * _SCALES[match["scale"]] * factor
    if not (math.isfinite(number) and rule.low <= number <= rule.high):
        bounds = f"{_shown(rule.low)} and {_shown(rule.high)}"
        named = next((name for name, size in rule.units.items() if size == 1), "") if rule.needs_unit else ""
        raise ValueError(f"{value!r} is out of bounds: it must be between {bounds} {named}".rstrip())
    return number, currency


def _factor(unit: str, rule: Kind, value: Any) -> float:
    unit = unit.replace(" ", "")
    if not unit and not rule.needs_unit:
        return 1.0
    if unit in rule.units:
        return rule.units[unit]
    units = ", ".join(rule.units)
    if not unit:
        raise ValueError(f"{value!r} has no unit; write for example {rule.example!r} (units: {units})")
    known = f"units: {units}"
    raise ValueError(unknown_name(f"{value!r} has the unknown unit", unit, rule.units, known, cutoff=0.4))


def _shown(number: float) -> str:
    return f"{number:,g}" if number < 1e6 else f"{number:.0e}"
