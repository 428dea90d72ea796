"""Errors of the state file, each with a next step."""

from __future__ import annotations


class StateError(OSError):
    """Raised if the state cannot be read or written. The message names the file; `next_step` says what to do."""

    def __init__(self, message: str, *, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


class StateTooNew(StateError):
    """The file is from a newer version of prep. It was not changed."""


class StateDamaged(StateError):
    """SQLite cannot read the file. It was not changed."""


class StateUnavailable(StateError):
    """The folder is not writable, the disk is full, or another program has locked the file."""


class ArchiveRefused(StateError):
    """An archive is damaged, from a newer version, or contradicts this state. Nothing was imported."""
