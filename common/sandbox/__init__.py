"""Run learner code in a process of its own, confined and limited, and never let it decide. See README.md."""

from common.sandbox.errors import GuestError, GuestNotStarted, GuestStopped
from common.sandbox.guest import Guest, confinement
from common.sandbox.handle import Handle
from common.sandbox.lent import callback, expose
from common.sandbox.limits import Limits

__all__ = [
    "Guest",
    "GuestError",
    "GuestNotStarted",
    "GuestStopped",
    "Handle",
    "Limits",
    "callback",
    "confinement",
    "expose",
]
