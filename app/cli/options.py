"""Declare options: one at a time, shared by commands, or in groups; and parse `--set key=value`.

    @dataclass(frozen=True)
    class Traffic:
        rate: Annotated[float, option("Requests per second.")] = 4.0

    @option_groups
    def run(traffic: Traffic = Traffic(rate=20.0), json: JsonOption = False): ...     # prep run --rate 5 --json

The default of a group's parameter sets the defaults of its options; without it, those of the dataclass apply.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from app.cli.terminal import ENVIRONMENT, Problem, shown
from prep_common.paths import is_stream, why_unwritable
from prep_common.typed_value import parse_value

Settings = TypeVar("Settings")


def option(help: str | None = None, *flags: str, **settings: Any) -> Any:
    """An option; without `flags` it is named after its parameter."""
    return typer.Option(*flags, help=help, **settings)


def argument(help: str | None = None, **settings: Any) -> Any:
    return typer.Argument(help=help, **settings)


def make_folder_of(*files: Path | None) -> None:
    """Make the folders of files that a command will write; called before its work. Raises Problem if one cannot be.

    `prep` removes those that are still empty when the command ends, such as after an error.
    """
    for file in filter(None, files):
        if is_stream(file):
            continue
        folder = Path(os.path.realpath(file)).parent
        _NEW_FOLDERS.extend(parent for parent in (folder, *folder.parents) if not parent.exists())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            why = f"{shown(file)} is a folder" if file.is_dir() else why_unwritable(folder)
        except FileExistsError:
            why = f"{shown(folder)} is not a folder"
        except OSError as error:
            why = error.strerror or str(error)
        if why:
            raise Problem(f"cannot write {shown(file)}: {why}", "use another path", code=ENVIRONMENT)


_NEW_FOLDERS: list[Path] = []
"""Folders that `make_folder_of` made for the command that runs."""


def remove_empty_folders() -> None:
    """Remove the folders that `make_folder_of` made and that hold nothing."""
    for folder in sorted(_NEW_FOLDERS, reverse=True):  # the innermost first
        with suppress(OSError):
            folder.rmdir()
    _NEW_FOLDERS.clear()


def with_example(read: Callable[[Path], Settings], file: Path, example: str) -> Settings:
    """Return the settings of a file. Raises Problem that names an example for one that cannot be found."""
    try:
        return read(file)
    except ValueError as error:
        if file.exists():
            raise
        raise Problem(str(error), f"{example}   is one to start with") from None


JsonOption = Annotated[bool, option("Print JSON for scripts.", "--json")]
TopicOption = Annotated[str | None, option("Only this topic.")]
ScriptOption = Annotated[Path | None, option("Answers, one line per prompt.", metavar="FILE")]
SetOption = Annotated[
    list[str] | None,
    option("An argument of the experiment; repeat for more. Lists: lens=4,9,3", "--set", metavar="K=V"),
]
ModelArgument = Annotated[str, argument("A shipped model, a folder, or a Hugging Face id.")]


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace every parameter whose type is a dataclass by options for the fields of that dataclass."""
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        kind = parameter.annotation
        if not is_dataclass(kind):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        assert isinstance(kind, type)
        groups[name] = kind
        defaults = kind() if parameter.default is parameter.empty else parameter.default
        hints = get_type_hints(kind, include_extras=True)
        parameters += [
            keyword(field.name, hints[field.name], getattr(defaults, field.name)) for field in fields(kind)
        ]

    def with_groups(**values: Any) -> None:
        made = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        command(**made, **values)

    return with_parameters(command, with_groups, parameters)


def keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def with_parameters(
    command: Callable[..., None], wrapper: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """Return the wrapper under the command's name and help, with these parameters for typer to read."""
    wrapper = wraps(command)(wrapper)
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """Return name -> value: parsed as JSON if possible, as a list if there are commas, else as text."""
    values: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise Problem(f"--set needs name=value, not {pair!r}", "for example --set slots=4")
        values[name.strip().replace("-", "_")] = parse_value(text.strip())
    return values


def parse_json_object(flag: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise Problem(f"{flag} is not JSON: {error}", f"{flag} '{example}'") from None
    if not isinstance(value, dict):
        raise Problem(f"{flag} must be a JSON object, got {text}", f"{flag} '{example}'")
    return value


def parse_numbers(flag: str, text: str, example: str = "1,8,64") -> tuple[int, ...]:
    """1,4,16 -> (1, 4, 16)"""
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise Problem(f"{flag} must be whole numbers of at least 1, got {text!r}", f"{flag} {example}")
    return numbers
