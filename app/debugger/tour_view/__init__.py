"""The component of the page Learn: the last steps of a stop as an animation, with call-outs on blocks and lanes."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
