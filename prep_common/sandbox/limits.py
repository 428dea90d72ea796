"""Limits of a guest."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of one guest, over its whole life."""

    seconds: float = 10.0
    """Time in which the checker waits for the guest. The checker's own work and `imports` do not count, nor does the
    time in which a busy machine gives the two no processor, up to a bound."""
    call_seconds: float = float("inf")
    """The same time for one call."""
    load_seconds: float = float("inf")
    """The same time for loading the files."""
    megabytes: int = 1024
    """Resident memory."""
    value_megabytes: int = 64
    """Size of one value that the guest returns."""
    disk_megabytes: int = 64
    """Size of the scratch folder, and on Linux of deleted files that are still open."""
    threads: int = 64
    calls: int = 200_000
    """Calls of what the checker lends."""
    lent_seconds: float = 120.0
    """Time that these calls may take together."""
