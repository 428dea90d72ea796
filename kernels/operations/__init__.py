"""The entries of all operations. A module of this folder needs no registration: each `Operation` in it is one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from kernels.operation import Operation

OPERATIONS: dict[str, Operation] = {}
"""Operations by name: module by module, in each in the order of the source."""

for _module in sorted(module.name for module in iter_modules(__path__)):
    for _entry in vars(import_module(f"{__name__}.{_module}")).values():
        if isinstance(_entry, Operation) and OPERATIONS.setdefault(_entry.name, _entry) is not _entry:
            raise ValueError(f"{__name__}.{_module} has a second entry of {_entry.name}")
