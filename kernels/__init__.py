"""Kernels: the engine's numeric operations, reached through `kernels.ops` only.

The version is not a release number. transformers looks for the Hub package that is also called `kernels`
and takes any version from 0.18.2 up to 0.19 for it, then calls functions we do not have; below
that range it leaves us alone. No other module is imported here, so that such a look costs nothing.
"""

import os
import sys

__version__ = "0.0.1"

# Read by OpenMP when torch is imported. Between two kernels a thread waits some microseconds, between two steps much
# longer: it should spin for the first and sleep for the second. Always asleep (OMP_WAIT_POLICY=passive) a step of one
# request takes ten times as long; spinning for milliseconds, as is the default, takes the core from other programs.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

INSTALL_COMPILERS = f"in the checkout: {sys.executable} -m pip install -e '.[cuda]'   (Linux)"
"""What brings Triton and NVRTC, with which the GPU kernels compile on any machine."""
