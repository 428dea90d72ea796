"""Colours of all pages: Okabe and Ito's palette, which colour-blind readers can tell apart. Shapes differ too.

The scripts and style sheets in the browser repeat them; `tests/app/debugger/test_colours.py` holds them to it.
"""

from __future__ import annotations

USED, SHARED, CACHED, FREE = "#0072B2", "#E69F00", "#009E73", "#1c2537"
"""Blocks: held by one request; by several, with a dot; free and cached, hatched; free, hollow (filled only if a cell is
too small for a frame)."""
PREFILL, DECODE, PREEMPTED = "#CC79A7", "#56B4E9", "#D55E00"
"""Requests: a full bar; a lower one; a hatched one. A waiting request has a dashed frame and no colour."""
HERE = "#F0E442"
"""The selected step or block."""
GROUND, QUIET = "#0b1020", "#9ca3af"

BLOCK_SWATCHES = {
    "shared": f"height:12px;background:radial-gradient(circle,{GROUND} 1px,{SHARED} 1.5px) 0 0/6px 6px",
    "used": f"height:12px;background:{USED}",
    "cached": f"height:12px;background:repeating-linear-gradient(135deg,{CACHED} 0 3px,{GROUND} 3px 4.5px)",
    "free": "height:12px;border:1px solid #64748b",
    "gone": f"height:12px;border:1px dashed {QUIET}",
}
"""CSS of a legend's swatches."""
PHASE_SWATCHES = {
    "waiting": f"height:6px;border:1px dashed {QUIET}",
    "prefill": f"height:14px;background:{PREFILL}",
    "decode": f"height:9px;background:{DECODE}",
    "preempted": f"height:6px;background:repeating-linear-gradient(45deg,{PREEMPTED} 0 3px,#3b1a06 3px 6px)",
}
