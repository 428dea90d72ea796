"""Sentences about data that pydantic refused: the key's path, what is allowed there, the value.

tenants[0].burst: must be a whole number, got 'many'
hardware.tp: must be at most 64, got 1000
replicass: unknown setting; did you mean 'replicas'?
gpu: unknown setting here; there is hardware.gpu
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from prep_common.field_paths import Location, Place, follow, places_of
from prep_common.names import closest
from prep_common.text import counted, join_or, shown

MUST = "must be "
MOST = 20
"""Places in one list of complaints. The sender decides how much of the data is wrong."""
MOST_FORMS = 20
"""Errors that are worded for one place: a union has one for each of its forms."""


class Complaint(NamedTuple):
    """One thing that is wrong."""

    location: Location
    text: str


def complaints(
    errors: Iterable[Mapping[str, Any]], kind: Any = None, *, within: Location = (), most: int = MOST
) -> list[Complaint]:
    """Return what is wrong, in the order of the errors.

    errors: `errors()` of a ValidationError. kind: the type that was validated, such as a model; without it, sentences
    name no similar field. within: location of the value that was validated. most: complaints; one more counts the
    others. Only these are worded, and the rest of the time grows with the number of errors.
    """
    by_path: dict[Location, list[tuple[Mapping[str, Any], Place]]] = {}
    for error in errors:
        place = follow(tuple(error["loc"]), kind)
        place = place._replace(path=(*within, *place.path))
        by_path.setdefault(place.path, []).append((error, place))
    # Of a union, the form that fits best: its errors are the deepest.
    inner = {path[:length] for path in by_path for length in range(1, len(path))}
    leaves = [path for path in by_path if path not in inner]
    listed = [Complaint(path, _sentence(path, by_path[path][:MOST_FORMS], kind)) for path in leaves[:most]]
    return listed + [Complaint((), f"and {len(leaves) - most} more")] * (len(leaves) > most)


def complain(errors: Iterable[Mapping[str, Any]], kind: Any = None, *, within: Location = ()) -> str:
    """Return all that is wrong in one line."""
    return "; ".join(complaint.text for complaint in complaints(errors, kind, within=within))


def path_of(location: Location) -> str:
    """Return tenants[0].name for ("tenants", 0, "name")."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(
        "."
    )


def _sentence(path: Location, errors: list[tuple[Mapping[str, Any], Place]], kind: Any) -> str:
    """Return what is wrong at a place; the forms of a union are alternatives."""
    rules, value = [_rule(error, place, kind) for error, place in errors], errors[-1][0].get("input")
    text = next((rule for rule in rules if not rule.startswith(MUST)), "")
    if not text:
        allowed = join_or(list(dict.fromkeys(rule.removeprefix(MUST) for rule in rules)))
        text = f"{MUST}{allowed}, got {_shown(path, value)}"
    return f"{path_of(path)}: {text}" if path else text


def _shown(path: Location, value: Any) -> str:
    """Return a value on one line of bounded length. Keys of an API are secret."""
    if any(str(part).endswith("_key") for part in path):
        return "another value"
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else shown(value)


def _rule(error: Mapping[str, Any], place: Place, kind: Any) -> str:
    """Return what is allowed at the place of an error, or what a validator of our own says."""
    name, context, message = error["type"], error.get("ctx", {}), str(error["msg"])
    if name in ("extra_forbidden", "unexpected_keyword_argument"):
        return _unknown(str(place.path[-1]), place, kind)
    if name in ("missing", "missing_argument"):
        return "is missing"
    if name == "value_error":
        return message.removeprefix("Value error, ")
    if name == "string_pattern_mismatch" and place.description:
        return MUST + place.description
    if name in _MAPPINGS and place.needed:
        return f"{MUST}a mapping with {', '.join(place.needed)}"
    return MUST + _ALLOWED[name](context) if name in _ALLOWED else message[:1].lower() + message[1:]


def _unknown(name: str, place: Place, kind: Any) -> str:
    """Return the closest name in the same mapping, else where the name would be right, else all names."""
    close = closest(name, place.siblings)
    if close is not None:
        return f"unknown setting; did you mean {close!r}?"
    if elsewhere := places_of(name, kind):
        return f"unknown setting here; there is {join_or(elsewhere)}"
    return "unknown setting" + (f"; known: {', '.join(place.siblings)}" if place.siblings else "")


def _always(text: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda _: text


def _number(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:g}"


_MAPPINGS = ("dict_type", "model_type", "model_attributes_type", "dataclass_type", "mapping_type")
_ALLOWED: dict[str, Callable[[Mapping[str, Any]], str]] = {
    **dict.fromkeys(
        ("int_type", "int_parsing", "int_from_float", "int_parsing_size"), _always("a whole number")
    ),
    **dict.fromkeys(("float_type", "float_parsing"), _always("a number")),
    "finite_number": _always("a finite number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), _always("true or false")),
    **dict.fromkeys(("string_type", "string_unicode", "invalid_key"), _always("a text")),
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), _always("a list")),
    **dict.fromkeys(_MAPPINGS, _always("a mapping of names to values")),
    "path_type": _always("the name of a file"),
    "literal_error": lambda context: context["expected"],
    "greater_than": lambda context: f"more than {_number(context['gt'])}",
    "greater_than_equal": lambda context: f"at least {_number(context['ge'])}",
    "less_than": lambda context: f"less than {_number(context['lt'])}",
    "less_than_equal": lambda context: f"at most {_number(context['le'])}",
    "string_pattern_mismatch": lambda context: f"a text that matches {context['pattern']}",
    "string_too_short": lambda context: f"a text of at least {counted(context['min_length'], 'character')}",
    "string_too_long": lambda context: f"a text of at most {counted(context['max_length'], 'character')}",
    "too_short": lambda context: f"a list of at least {counted(context['min_length'], 'entry')}",
    "too_long": lambda context: f"a list of at most {counted(context['max_length'], 'entry')}",
}
"""Type of pydantic's error -> what is allowed, from the error's context."""
