"""One thread for all tests: their tensors are tiny, and threads that wait for one another cost more than they give."""

from __future__ import annotations

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    torch.set_num_threads(1)
