"""The one option that must be known before pytest reads tests/: further golden vectors."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --golden."""
    parser.addoption(
        "--golden",
        action="append",
        default=[],
        metavar="DIR",
        help="folder with cases.json and vectors in the format of tests/golden/vectors, run instead of it; repeatable",
    )
