"""Settings of every test run."""

from __future__ import annotations

import os

# Tensors in tests are tiny, and test processes run side by side: threads would only wait for each other.
# Read when torch is imported, so it stands before any test module.
os.environ.setdefault("OMP_NUM_THREADS", "1")
