"""Run learner code in a process of its own, confined and limited, and never let it decide. See README.md."""

from prep_common.sandbox.errors import GuestError, GuestNotStarted, GuestStopped
from prep_common.sandbox.guest import Guest, confinement
from prep_common.sandbox.handle import Handle
from prep_common.sandbox.lent import callback, expose
from prep_common.sandbox.limits import Limits

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
