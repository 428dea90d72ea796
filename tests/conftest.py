"""Settings of every test run. Read when torch and huggingface_hub are imported, so before any test module."""

from __future__ import annotations

import os

# Tensors in tests are tiny, and test processes run side by side: threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests never use the network: an id that is not on disk must fail at once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
