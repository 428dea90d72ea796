"""Import an object by its dotted path `package.module:Name`."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load_object(path: str) -> Any:
    """Return the object that `package.module:Name` or `package.module:Outer.Inner` names.

    Raises ValueError if the path has another form, ImportError if the module or the name does not exist, and any
    error that the module itself raises while it is imported.
    """
    module_name, _, name = path.partition(":")
    if not (module_name and name):
        raise ValueError(f"{path!r} must look like 'package.module:Name'")
    loaded: Any = import_module(module_name)
    try:
        for part in name.split("."):
            loaded = getattr(loaded, part)
    except AttributeError as error:
        raise ImportError(str(error)) from error
    return loaded
