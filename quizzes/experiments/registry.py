"""Experiments by name: a typed function, what it promises, and where it is found.

    # quizzes/experiments/batching/static_vs_continuous.py
    @experiment(catalogue="E13")
    def static_vs_continuous(ctx: Context, *, slots: Annotated[int, Field(ge=1, le=64)] = 4, ...) -> Steps: ...

The name of an experiment is its place: `batching.static_vs_continuous`. One file per experiment, so that running one
imports one. Modules import no torch at their top: whoever only counts must not wait for it.
"""

from __future__ import annotations

import inspect
import os
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).parent
EXTRA = "PREP_EXPERIMENTS"
"""Environment variable: a folder with experiments of one's own, `<topic>/<name>.py`, as here."""
Determinism = Literal["exact", "statistical"]


class UnknownExperiment(ValueError):
    """No experiment has that name; the message names a close one."""


class BadArguments(ValueError):
    """An argument that an experiment does not take or cannot use; nothing was run."""


class Inconclusive(Exception):
    """The measurement cannot decide here and now: too noisy. Not a failure, and never scored."""


class NeedsHardware(Exception):
    """This machine lacks what the experiment needs, a GPU for instance. Not a failure."""


@dataclass(frozen=True)
class Parameter:
    """One argument of an experiment."""

    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True)
class Experiment:
    """A registered function and what is promised about it."""

    name: str
    version: int
    """Raise it when results change meaning: cached ones are then not used."""
    catalogue: tuple[str, ...]
    """Rows of the experiment catalogue it realises, such as E13."""
    determinism: Determinism
    """exact: counters and formulas, the same on every machine. statistical: measured or sampled."""
    seconds: float
    """Time limit on two cores."""
    megabytes: int
    """Memory limit (resident)."""
    device: Literal["cpu", "cuda"]
    function: Callable[..., Any]

    @property
    def title(self) -> str:
        """The first sentence of its doc."""
        paragraph = " ".join(self.doc.split("\n\n")[0].split())
        return paragraph.split(". ")[0].rstrip(".") + "."

    @property
    def doc(self) -> str:
        return inspect.getdoc(self.function) or ""

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Keyword arguments with their annotated types; all have defaults, so that it runs as it is."""
        hints = typing.get_type_hints(self.function, include_extras=True)
        return {
            name: Parameter(name, hints.get(name, Any), parameter.default)
            for name, parameter in inspect.signature(self.function).parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }

    @property
    def result_units(self) -> dict[str, str]:
        """Field of the result -> unit, from `Annotated[int, "steps"]`; "" where it has none."""
        result_type = typing.get_type_hints(self.function).get("return")
        if result_type is None or not is_dataclass(result_type):
            return {}
        hints = typing.get_type_hints(result_type, include_extras=True)
        units = {}
        for field in fields(result_type):
            words = [word for word in getattr(hints[field.name], "__metadata__", ()) if isinstance(word, str)]
            units[field.name] = words[0] if words else ""
        return units

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        """All arguments, defaults filled in and every value of its type.

        Raises:
            BadArguments: an unknown name, or a value that does not fit.
        """
        from pydantic import TypeAdapter, ValidationError

        known = self.parameters
        for name in args:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise BadArguments(f"{self.name} takes no {name!r}; {hint}it takes: {', '.join(known)}")
        values = {}
        for name, parameter in known.items():
            value = args.get(name, parameter.default)
            if value is inspect.Parameter.empty:
                raise BadArguments(f"{self.name} needs a value for {name!r}")
            try:
                values[name] = TypeAdapter(parameter.annotation).validate_python(value)
            except ValidationError as error:
                first = error.errors()[0]
                where = "".join(f"[{part}]" for part in first["loc"])
                raise BadArguments(f"{self.name}: {name}{where} = {value!r}: {first['msg']}") from None
        return values


_registered: dict[str, Experiment] = {}


def experiment(
    *catalogue: str,
    version: int = 1,
    determinism: Determinism = "exact",
    seconds: float = 10.0,
    megabytes: int = 3000,
    device: Literal["cpu", "cuda"] = "cpu",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the function of this file as an experiment. It takes a Context and keyword arguments with defaults, and
    returns a frozen dataclass of plain values (numbers, strings, lists, dicts): what is shown, cached and graded."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = ".".join(function.__module__.split(".")[-2:])
        _registered[name] = Experiment(
            name, version, catalogue, determinism, seconds, megabytes, device, function
        )
        return function

    return register


def folders() -> list[Path]:
    """Where experiments are: here, and where the user says."""
    extra = os.environ.get(EXTRA)
    return [FOLDER, Path(extra)] if extra else [FOLDER]


def names() -> list[str]:
    """Names of all experiments, by file: nothing is imported."""
    return sorted(
        f"{path.parent.name}.{path.stem}"
        for folder in folders()
        for path in folder.glob("*/*.py")
        if not path.name.startswith("_")
    )


def get(name: str) -> Experiment:
    """The experiment of that name. Raises UnknownExperiment."""
    if name not in _registered:
        if name not in names():
            close = get_close_matches(name, names(), n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UnknownExperiment(
                f"no experiment is called {name!r}; {hint}prep experiments list shows all of them"
            )
        _import(name)
    if name not in _registered:
        raise UnknownExperiment(f"the file of {name} registers no experiment: decorate its function")
    return _registered[name]


def source_file(name: str) -> Path:
    """Where an experiment is written."""
    paths = [folder.joinpath(*name.split(".")).with_suffix(".py") for folder in folders()]
    return next((path for path in paths if path.is_file()), paths[0])


def _import(name: str) -> None:
    """Import the file of an experiment, which registers it."""
    path = source_file(name)
    if path.is_relative_to(FOLDER):
        import_module(f"{__package__}.{name}")
        return
    spec = spec_from_file_location(f"own_experiments.{name}", path)
    if spec is None or spec.loader is None:
        raise UnknownExperiment(f"{path} cannot be imported")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
