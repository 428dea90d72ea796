"""Colours that Python draws with: Okabe and Ito's palette, which the colour-blind can tell apart. Shapes differ too.

`shell.css` has the colours of all pages, in both themes; `tests/app/debugger/test_colours.py` compares.
"""

from __future__ import annotations

USED, SHARED, CACHED, FREE = "#0072B2", "#56B4E9", "#8593A8", "#1c2537"
"""Blocks: held by one request; by several, with a dot; free and cached, hatched; free, hollow (filled only if a cell is
too small for a frame)."""
REQUESTS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00", "#0072B2")
"""Requests, by `TraceIndex.colours`."""
PREEMPTED = "#D55E00"
"""Marks of preemptions."""
HERE_SWATCH = "height:14px;width:5px;background:var(--text);opacity:.3"
"""CSS of a legend's swatch: the current step, as `rects.css` draws it. It has no colour: a request may have any."""

BLOCK_SWATCHES = {
    "shared": "height:12px;background:radial-gradient(circle,var(--ink) 1px,var(--shared) 1.5px) 0 0/6px 6px",
    "used": "height:12px;background:var(--used)",
    "cached": "height:12px;background:repeating-linear-gradient(135deg,var(--cached) 0 2px,var(--ground) 2px 4px)",
    "free": "height:12px;border:1px solid var(--unknown)",
    "gone": "height:12px;border:1px dashed var(--quiet)",
}
"""CSS of a legend's swatches."""
PHASE_SWATCHES = {
    "waiting": "height:6px;border:1px dashed var(--quiet)",
    "prefill": "height:14px;background:var(--quiet)",
    "decode": "height:9px;background:var(--quiet)",
    "preempted": "height:6px;background:repeating-linear-gradient(45deg,var(--preempted) 0 3px,var(--ground) 3px 6px)",
}
"""CSS of a legend's swatches: a bar has its request's colour, and a phase its height."""
WAITS = {
    "no_blocks": "preempted",
    "budget_exhausted": "decode",
    "max_seqs": "prefill",
    "behind_in_queue": "unknown",
    "lower_priority": "victim",
    "preempting": "orange",
    "prefix_in_flight": "green",
    "grammar_compiling": "used",
    "kv_transfer": "orange",
    "no_lora_slot": "prefill",
    "other_batch": "unknown",
    "arrived": "quiet",
}
"""Reason of a wait -> custom property of its colour."""
PASSED_OVER = ("prefix_in_flight", "grammar_compiling", "kv_transfer", "no_lora_slot", "other_batch")
"""Reasons that end by themselves: drawn hollow."""


def wait_swatch(reason: str) -> str:
    """CSS of the legend's swatch for a reason."""
    colour = f"var(--{WAITS[reason]})"
    if reason in PASSED_OVER:
        return f"height:7px;border:1px dashed {colour}"
    return f"height:7px;background:{colour}"
