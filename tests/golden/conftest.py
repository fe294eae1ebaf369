"""One test per golden case: those beside this file, or those of the folders given with --golden."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.replay import GoldenCase, load_cases

VECTORS = Path(__file__).parent / "vectors"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "golden_case" in metafunc.fixturenames:
        cases = _cases(metafunc.config)
        metafunc.parametrize("golden_case", cases, ids=[case.name for case in cases])


def _cases(config: pytest.Config) -> list[GoldenCase]:
    folders = [config.invocation_params.dir / folder for folder in config.getoption("--golden")] or [VECTORS]
    try:
        return [case for folder in folders for case in load_cases(folder)]
    except (OSError, ValueError, KeyError) as error:
        raise pytest.UsageError(f"--golden: {error}") from error
