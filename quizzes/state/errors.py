"""What can be wrong with the state file, each with the step that helps."""

from __future__ import annotations


class StateError(OSError):
    """The state cannot be read or written. The message names the file; `next_step` says what to do."""

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


class StateTooNew(StateError):
    """Written by a newer version of prep. The file was not touched."""


class StateDamaged(StateError):
    """SQLite cannot read the file. It was left where it is."""


class StateUnavailable(StateError):
    """The folder cannot be written, the disk is full, or another program holds the file."""


class ArchiveRefused(StateError):
    """An archive that is damaged, from a newer version or at odds with this state. Nothing was imported."""
