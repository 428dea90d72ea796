"""Kernels: the engine's numeric operations, reached through `kernels.ops` only.

The version is not a release number. transformers looks for the Hub package that is also called `kernels`
and takes any version from 0.18.2 up to 0.19 for it, then calls functions we do not have; below
that range it ignores this package. No other module is imported here, so that this check costs nothing.
"""

import os
import sys

__version__ = "0.0.1"

# OpenMP reads this when torch is imported. A thread waits microseconds between two kernels and much longer between two
# steps: it should spin in the first case and sleep in the second. With OMP_WAIT_POLICY=passive a step of one request
# takes ten times as long; the default, spinning for milliseconds, takes the core from other programs.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

INSTALL_COMPILERS = f"in the checkout: {sys.executable} -m pip install -e '.[cuda]'   (Linux)"
"""Command that installs Triton and NVRTC, which compile the GPU kernels on any Linux machine."""
