"""Settings that must stand before the first test imports torch or huggingface_hub."""

from __future__ import annotations

import os

# Tests never need the network: an id that is not on disk must fail at once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# Under xdist each worker has a core of its own; more threads than cores only wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
