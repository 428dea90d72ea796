"""Declare options that several commands share once, as the fields of a dataclass.

    @dataclass(frozen=True)
    class Traffic:
        rate: Annotated[float, typer.Option(help="Requests per second.")] = 4.0

    @option_groups
    def run(traffic: Traffic = Traffic(rate=20.0), json: Json = False): ...     # prep run --rate 5 --json

The default of a group's parameter sets the defaults of its options; without it, those of the dataclass apply.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter whose type is a dataclass by options for the fields of that dataclass."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        kind = parameter.annotation
        if not is_dataclass(kind):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        assert isinstance(kind, type)
        groups[name] = kind
        defaults = kind() if parameter.default is parameter.empty else parameter.default
        hints = get_type_hints(kind, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=getattr(defaults, field.name),
                annotation=hints[field.name],
            )
            for field in fields(kind)
        ]

    @wraps(command)
    def with_groups(**values: Any) -> None:
        made = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        command(**made, **values)

    with_groups.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_groups
