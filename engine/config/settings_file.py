"""Read settings from a YAML file: a wrong one is an error with file and line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engine.config.settings import ConfigError
from prep_common.complaints import complaints, path_of
from prep_common.yaml_text import YamlError, YamlFile

if TYPE_CHECKING:
    from pydantic import BaseModel

Settings = TypeVar("Settings", bound="BaseModel")


def read_yaml(path: Path, kind: type[Settings], expected: str, *, environment: bool = True) -> Settings:
    """Read settings of a kind. Raises ConfigError with file and line for each thing that is wrong.

    expected: message for a file that holds something else than settings. environment: a value $NAME stands for the
    variable of that name.
    """
    from pydantic import ValidationError

    try:
        file = YamlFile(path)
        if not isinstance(file.value, dict):
            raise YamlError(expected if file.value is not None else f"the file is empty; {expected}", 1)
        return kind.model_validate(_with_environment(file, file.value) if environment else file.value)
    except YamlError as error:
        place = path if error.line is None else f"{path}:{error.line}"
        raise ConfigError(f"{place}: {error}") from None
    except ValidationError as error:
        problems = sorted(
            (file.line(complaint.location), complaint.text) for complaint in complaints(error.errors(), kind)
        )
        raise ConfigError("\n".join(f"{path}:{line}: {text}" for line, text in problems)) from None
    except RecursionError:
        raise ConfigError(f"{path}:1: an alias (*name) stands for a value that contains it") from None


def _with_environment(file: YamlFile, value: Any, location: tuple[int | str, ...] = ()) -> Any:
    """Replace $NAME by the variable of that name. Raises YamlError if it is not set."""
    if isinstance(value, dict):
        return {key: _with_environment(file, inner, (*location, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_environment(file, inner, (*location, index)) for index, inner in enumerate(value)]
    if not isinstance(value, str) or not value.startswith("$"):
        return value
    if value[1:] not in os.environ:
        problem = f"{path_of(location)}: the environment variable {value[1:]} is not set"
        raise YamlError(problem, file.line(location))
    return os.environ[value[1:]]
