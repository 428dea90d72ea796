"""Experiments by name: registration, arguments with their bounds, results with their fields.

    # quizzes/experiments/batching/counting.py
    @experiment("E13")
    def static_vs_continuous(ctx: Context, slots: int = arg(4, 1, 64), ...) -> Result:
        # its docstring: a title, a text, and the fields of the result
        Returns:
            static_steps [steps]: Engine steps until all requests have finished.
            speedup [x]

Folder and function give an experiment its name: `batching.static_vs_continuous`. Running one imports its file only.
Modules import no torch at their top, so that experiments that only count start in milliseconds.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple

from prep_common.complaints import complain
from prep_common.names import unknown_name

FOLDER = Path(__file__).parent
EXTRA = "PREP_EXPERIMENTS"
"""Environment variable: a folder with more experiments in `<topic>/*.py`, as in this one."""
Determinism = Literal["exact", "statistical"]
_DEFINED = re.compile(
    r"^@experiment\((?:(?!^[@d]).)*?\)[ \t]*(?:#[^\n]*)?\n(?:[@#][^\n]*\n)*def (\w+)\(",
    re.MULTILINE | re.DOTALL,
)
_BARE = r"(\w+(?:, \w+)*)(?: \[([^\]]+)\])?"
_FIELDS, _SEVERAL = re.compile(_BARE + "(?:: (.+))?$"), re.compile(f"{_BARE}(?:; {_BARE})+$")
"""Fields in a docstring's Returns section: `name`, `name [unit]: meaning`, several `name, name [unit]: meaning`, and
without a meaning also several with different units on a line: `name [unit]; name, name [unit]`."""


class UnknownExperiment(ValueError):
    """No experiment has that name; the message suggests a similar one."""


class BadArguments(ValueError):
    """An argument is unknown or not valid; nothing was run."""


class Inconclusive(Exception):
    """The measurement is too noisy to decide. Not a failure, and never scored."""


class NeedsHardware(Exception):
    """This machine lacks hardware that the experiment needs, such as a GPU. Not a failure."""


class Result(SimpleNamespace):
    """Figures of one run by field name: plain values (numbers, strings, lists, dicts), shown, cached and graded."""


class ResultField(NamedTuple):
    """One field of a result, as the docstring's Returns section declares it."""

    name: str
    unit: str
    meaning: str


class Parameter(NamedTuple):
    """One argument of an experiment."""

    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True)
class _Argument:
    """A default value and the bounds of an argument; `bounds` and `size` are keywords of pydantic.Field."""

    default: Any
    bounds: dict[str, Any]
    size: dict[str, Any]

    def annotate(self, hint: Any) -> Any:
        """Return the type hint with the bounds in it; those of a list hold for each of its items."""
        from pydantic import Field

        if NoneType in typing.get_args(hint):
            (inner,) = (option for option in typing.get_args(hint) if option is not NoneType)
            return self.annotate(inner) | None
        if typing.get_origin(hint) is list:
            (item,) = typing.get_args(hint)
            inner = Annotated[item, Field(**self.bounds)] if self.bounds else item
            return Annotated[list[inner], Field(**self.size)]  # type: ignore[valid-type]
        return Annotated[hint, Field(**self.bounds)]


def arg(
    default: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    multiple_of: int | None = None,
    chars: tuple[int, int | None] | None = None,
    count: tuple[int, int | None] | None = None,
) -> Any:
    """Declare an argument's default and its bounds, both inclusive: `slots: int = arg(4, 1, 64)`.

    above, below: bounds that are not themselves allowed. chars: shortest and longest string. count: fewest and most
    items of a list, whose items the other bounds then hold for. `None` leaves a list or a string unbounded.
    """
    bounds = {"ge": low, "le": high, "gt": above, "lt": below, "multiple_of": multiple_of}
    lengths = ("min_length", "max_length")
    bounds |= dict(zip(lengths, chars or (None, None), strict=True))
    size = dict(zip(lengths, count or (None, None), strict=True))
    return _Argument(default, *({k: v for k, v in d.items() if v is not None} for d in (bounds, size)))


@dataclass(frozen=True)
class Experiment:
    """A registered function with its limits."""

    name: str
    version: int
    """Raise it when results change meaning, to discard cached ones."""
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
    arguments: dict[str, _Argument]

    @property
    def title(self) -> str:
        """The first paragraph of its doc, one sentence."""
        return " ".join(self.doc.split("\n\n")[0].split())

    @property
    def doc(self) -> str:
        """The docstring without its Returns section."""
        return (inspect.getdoc(self.function) or "").partition("\nReturns:")[0].strip()

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Arguments besides the context, with their types. All have defaults: the experiment runs without any."""
        hints = typing.get_type_hints(self.function, include_extras=True)
        parameters, context = {}, self._context
        for name, parameter in inspect.signature(self.function).parameters.items():
            hint = hints.get(name, Any)
            if name in self.arguments:
                hint = self.arguments[name].annotate(hint)
            if name != context:
                parameters[name] = Parameter(name, hint, parameter.default)
        return parameters

    def run(self, ctx: Any, **values: Any) -> Any:
        """Call the function with checked arguments, and with the context if it takes one."""
        return self.function(**values, **({self._context: ctx} if self._context else {}))

    @property
    def _context(self) -> str:
        """Name of the parameter that takes the context: the first, if called `ctx` or annotated `Context`."""
        first = next(iter(inspect.signature(self.function).parameters), "")
        hint = typing.get_type_hints(self.function).get(first)
        return first if first == "ctx" or getattr(hint, "__name__", "") == "Context" else ""

    @property
    def chart(self) -> Callable[[Result], dict[str, Any]] | None:
        """The function `<name>_chart` beside the experiment, which draws its result (Vega-Lite), if there is one."""
        function = self.function
        return getattr(sys.modules[function.__module__], f"{function.__name__}_chart", None)

    @property
    def result_fields(self) -> list[ResultField]:
        """Fields that the docstring's Returns section declares, in order."""
        return self._returns[1]

    @property
    def result_note(self) -> str:
        """Sentences that hold for all fields, from the start of the Returns section."""
        return self._returns[0]

    @property
    def _returns(self) -> tuple[str, list[ResultField]]:
        entries: list[str] = []
        _, _, declared = (inspect.getdoc(self.function) or "").partition("\nReturns:")
        for line in inspect.cleandoc(declared).splitlines():
            if line.startswith(" ") and entries:
                entries[-1] += " " + line.strip()
            else:
                entries.append(line)
        note, fields = [], []
        for entry in entries:
            for part in entry.split("; ") if _SEVERAL.match(entry) else [entry]:
                if match := _FIELDS.match(part):
                    names, unit, meaning = (group or "" for group in match.groups())
                    fields += [ResultField(name, unit, meaning) for name in names.split(", ")]
                else:
                    note.append(part)
        return " ".join(note), fields

    @property
    def result_units(self) -> dict[str, str]:
        """Unit by field of the result; "" where it has none."""
        return {field.name: field.unit for field in self.result_fields}

    def check(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return all arguments, with defaults filled in and types checked.

        Raises:
            BadArguments: an unknown name, or a value that is not valid.
        """
        from pydantic import TypeAdapter, ValidationError

        known = self.parameters
        for name in args:
            if name not in known:
                takes = f"it takes: {', '.join(known)}"
                raise BadArguments(unknown_name(f"{self.name} takes no", name, known, takes))
        values = {}
        for name, parameter in known.items():
            value = args.get(name, parameter.default)
            if value is inspect.Parameter.empty:
                raise BadArguments(f"{self.name} needs a value for {name!r}")
            try:
                values[name] = TypeAdapter(parameter.annotation).validate_python(value)
            except ValidationError as error:
                problem = complain(error.errors(), parameter.annotation, within=(name,))
                raise BadArguments(f"{self.name}: {problem}") from None
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
    """Register a function as an experiment: it takes arguments with defaults, after a Context if it uses one,
    and returns a Result with the fields that its docstring declares. catalogue: rows that it realises, such as E13."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = f"{function.__module__.split('.')[-2]}.{function.__name__}"
        parameters = inspect.signature(function).parameters.values()
        arguments = {p.name: p.default for p in parameters if isinstance(p.default, _Argument)}
        function.__defaults__ = tuple(
            default.default if isinstance(default, _Argument) else default
            for default in function.__defaults__ or ()
        )
        _registered[name] = Experiment(
            name, version, catalogue, determinism, seconds, megabytes, device, function, arguments
        )
        return function

    return register


def folders() -> list[Path]:
    """Return the folders of experiments: this one, and the user's."""
    extra = os.environ.get(EXTRA)
    return [FOLDER, Path(extra)] if extra else [FOLDER]


def _files(topic: str | None = None) -> dict[str, Path]:
    """Return the files of all experiments (of one topic) by name, without importing them."""
    return {
        f"{path.parent.name}.{function}": path
        for folder in reversed(folders())
        for path in (folder.glob("*/*.py") if topic is None else (folder / topic).glob("*.py"))
        if not path.name.startswith((".", "_"))
        for function in _DEFINED.findall(path.read_text(encoding="utf-8", errors="replace"))
    }


def names() -> list[str]:
    """Return the names of all experiments."""
    return sorted(_files())


def source_file(name: str) -> Path:
    """Return the file of an experiment. Raises UnknownExperiment."""
    registered = _files(name.partition(".")[0]).get(name)
    if registered is None:
        where = "prep experiments list shows all of them"
        raise UnknownExperiment(unknown_name("no experiment is called", name, names(), where))
    return registered


def get(name: str) -> Experiment:
    """Return an experiment by name. Raises UnknownExperiment."""
    if name not in _registered:
        _import(source_file(name))
    if name not in _registered:
        raise UnknownExperiment(f"the file of {name} registers no such experiment")
    return _registered[name]


def _import(path: Path) -> None:
    """Import a file, which registers its experiments."""
    module_name = f"{path.parent.name}.{path.stem}"
    if path.is_relative_to(FOLDER):
        import_module(f"{__package__}.{module_name}")
        return
    spec = spec_from_file_location(f"own_experiments.{module_name}", path)
    if spec is None or spec.loader is None:
        raise UnknownExperiment(f"{path} cannot be imported")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
