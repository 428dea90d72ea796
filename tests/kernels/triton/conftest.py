"""These tests run the Triton kernels in its interpreter, on the CPU.

Triton reads TRITON_INTERPRET when a kernel is defined, so it has to be in the environment of the process:
`tests/kernels/test_triton.py` starts one that has it. In any other there is nothing to collect here. By hand:

    TRITON_INTERPRET=1 pytest tests/kernels/triton
"""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
