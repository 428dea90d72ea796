"""Lessons in which the reader builds an inference engine. Start with README.md."""

from typing import TYPE_CHECKING

from prep_common.own_packages import enter

if not TYPE_CHECKING:
    __getattr__ = enter(__name__)
