"""The launches of the Triton backend against the oracle: every operation of every golden case, on the CPU."""

from __future__ import annotations

import pytest

from drafts.triton_runner import TritonRunner
from tests.golden.path_checks import bind_case, check_path
from tests.golden.replay import GoldenCase

pytestmark = [pytest.mark.slow, pytest.mark.interpreted]


def test_launches_play_every_operation(golden_case: GoldenCase) -> None:
    check_path(golden_case, TritonRunner(bind_case(golden_case)))
