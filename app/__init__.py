"""Programs on top of the engine: the command line (`app.cli`) and the benchmarks (`app.bench`)."""

from typing import TYPE_CHECKING

from prep_common.own_packages import enter

if not TYPE_CHECKING:
    __getattr__ = enter(__name__)
