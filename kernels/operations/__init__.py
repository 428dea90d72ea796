"""The entries of all operations. A module of this folder needs no registration: each `Operation` in it is one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from kernels.operation import Operation

OPERATIONS: dict[str, Operation] = {
    entry.name: entry
    for module in sorted(each.name for each in iter_modules(__path__))
    for entry in vars(import_module(f"{__name__}.{module}")).values()
    if isinstance(entry, Operation)
}
"""Operations by name: module by module, in each in the order of the source."""
