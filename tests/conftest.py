"""What every test runs under: one torch thread, and a reason where a GPU test cannot run."""

import os
from collections.abc import Iterator

import pytest
import torch

from tests.support.ranks import RankPool

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


@pytest.fixture(scope="session")
def rank_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    """Four processes that tests run ranks on."""
    pool = RankPool(4, tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()
