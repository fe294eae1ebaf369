"""What every test runs under: one torch thread, and a reason where a GPU test cannot run."""

import os

import pytest
import torch

# before triton is first imported: kernels are made for one or the other
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")
IS_INTERPRETING = os.environ["TRITON_INTERPRET"] == "1"


def pytest_configure() -> None:
    # the sizes are tiny, and two workers with two threads each wait for one another most of the time
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("interpreted") and not IS_INTERPRETING:
            item.add_marker(pytest.mark.skip(reason="kernels run on the GPU here; set TRITON_INTERPRET=1"))
        if item.get_closest_marker("gpu") and IS_INTERPRETING:
            item.add_marker(pytest.mark.skip(reason="no CUDA device, or TRITON_INTERPRET=1: kernels run on the CPU"))
