"""Remove a fleet's folder when the fleet ends, also if it is killed: python -m engine.fleet.janitor FOLDER."""

from __future__ import annotations

import os
import shutil
import sys

if __name__ == "__main__":
    while os.read(0, 1):
        pass
    shutil.rmtree(sys.argv[1], ignore_errors=True)
