"""The interview: mock sessions with an interviewer that runs experiments, and the plan of the days before it."""

from typing import TYPE_CHECKING

from prep_common.own_packages import enter

if not TYPE_CHECKING:
    __getattr__ = enter(__name__)
