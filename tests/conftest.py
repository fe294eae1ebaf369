"""What every test runs under: one torch thread, and a reason where a GPU test cannot run."""

import pytest
import torch


def pytest_configure() -> None:
    # the sizes are tiny, and two workers with two threads each wait for one another most of the time
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and there is none"))
