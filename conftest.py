"""The options that must be known before pytest reads tests/: further golden vectors, a longer life of drafters."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --golden and --lifecycle-steps."""
    parser.addoption(
        "--golden",
        action="append",
        default=[],
        metavar="DIR",
        help="folder with cases.json and vectors in the format of tests/golden/vectors, run instead of it; repeatable",
    )
    parser.addoption(
        "--lifecycle-steps",
        type=int,
        default=0,
        metavar="N",
        help="calls that tests/drafts/test_lifecycle_machine.py makes in place of its 300 examples",
    )
