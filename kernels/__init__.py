"""Kernels: the engine's numeric operations, reached through `kernels.ops` only.

The version is not a release number. transformers looks for the Hub package that is also called `kernels`
and takes any version from 0.18.2 up to 0.19 for it, then calls functions we do not have; below
that range it ignores this package. No other module is imported here, so that this check costs nothing.
"""

import os
import sys

__version__ = "0.0.1"

# OpenMP reads this when torch is imported. Our kernels have threads of their own (cpu/threads.h); one of torch's
# is needed rarely, and by default it would spin for milliseconds after each operation, on a core that ours need.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

INSTALL_COMPILERS = f"in the checkout: {sys.executable} -m pip install -e '.[cuda]'   (Linux)"
"""Command that installs Triton and NVRTC, which compile the GPU kernels on any Linux machine."""
