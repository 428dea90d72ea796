"""Kernels: the engine's numeric operations, reached through `kernels.ops` only.

The version is not a release number. transformers looks for the Hub package that is also called `kernels`
and takes any version from 0.18.2 up to 0.19 for it, then calls functions we do not have; below
that range it leaves us alone. Nothing is imported here, so that such a look costs nothing.
"""

__version__ = "0.0.1"
