"""Kernels: the engine's numeric operations, reached through `kernels.ops` only.

The version is not a release number. transformers looks for Hugging Face's package that is also called `kernels`
and takes any version from 0.18.2 up to 0.19 for it; below that range it ignores this package. Where Hugging Face's
is installed too, its names are found through this package.
"""

import os
import sys
from typing import TYPE_CHECKING

from prep_common.own_packages import enter

__version__ = "0.0.1"
if not TYPE_CHECKING:
    __getattr__ = enter(__name__)

# OpenMP reads this when torch is imported. Our kernels have threads of their own (cpu/threads.h); one of torch's
# is needed rarely, and by default it would spin for milliseconds after each operation, on a core that ours need.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

INSTALL_COMPILERS = f"in the checkout: {sys.executable} -m pip install -e '.[cuda]'   (Linux)"
"""Command that installs Triton and NVRTC, which compile the GPU kernels on any Linux machine."""
