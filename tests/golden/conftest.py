"""One test per golden case: those beside this file, or those of the folders given with --golden.

A test takes `golden_case` to run on every case, or `case_with_VARIANT` to run on those that record that variant.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.golden.replay import GoldenCase, load_cases

VECTORS = Path(__file__).parent / "vectors"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture in metafunc.fixturenames:
        variant = fixture.removeprefix("case_with_")
        if fixture == "golden_case" or variant != fixture:
            cases = [case for case in _cases(metafunc.config) if variant == fixture or variant in case.variants]
            metafunc.parametrize(fixture, cases, ids=[case.name for case in cases])


@cache
def _cases(config: pytest.Config) -> list[GoldenCase]:
    folders = [config.invocation_params.dir / folder for folder in config.getoption("--golden")] or [VECTORS]
    try:
        return [case for folder in folders for case in load_cases(folder)]
    except (OSError, ValueError, KeyError) as error:
        raise pytest.UsageError(f"--golden: {error}") from error
