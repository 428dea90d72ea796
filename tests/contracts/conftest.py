"""Contract tests judge any implementation of a seam, yours included.

    pytest tests/contracts -k attention --impl lessons.my_attention:MyAttention
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--impl", default=None, help="class to judge in place of ours: package.module:Class")


@pytest.fixture
def impl(request: pytest.FixtureRequest) -> str | None:
    """What `--impl` names, or None: judge what we ship."""
    return request.config.getoption("--impl", default=None)
