"""Practice: experiments, question bank, claims, grading, and the learner's state. See README.md."""

from typing import TYPE_CHECKING

from prep_common.own_packages import enter

if not TYPE_CHECKING:
    __getattr__ = enter(__name__)
