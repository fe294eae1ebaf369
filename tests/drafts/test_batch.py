"""RowBatch: what is wrong with a run's rows is said by field, before the run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drafts.batch import RowBatch
from drafts.compiled_runner import padded_rows


@pytest.fixture(params=["few rows", "many rows"], autouse=True)
def each_way_of_looking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are looked at as numbers, many by the device: with one outcome."""
    if request.param == "many rows":
        monkeypatch.setattr("drafts.batch.MAX_ROWS_ON_HOST", 0)


def fields(**changes: Any) -> dict[str, Any]:
    """Two rows of sequence 1 at positions 4 and 5, one of sequence 2 at 0, one padding row; blocks of 4 rows."""
    return {
        "token": torch.tensor([3, 4, 5, 0]),
        "hidden": torch.zeros(4, 6),
        "position": torch.tensor([4, 5, 0, 0]),
        "sequence": torch.tensor([1, 1, 2, 0]),
        "block_table": torch.tensor([[1, 2], [1, 2], [3, 0], [0, 0]]),
    } | changes


def check(rows: RowBatch, **changes: int) -> None:
    limits = {"vocab_size": 7, "num_blocks": 4, "block_size": 4, "num_sequences": 3}
    rows.check_values(**(limits | changes))


def test_few_rows_of_long_sequences_are_not_looked_at_number_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of 8192 blocks a row costs milliseconds as numbers."""
    monkeypatch.setattr(RowBatch, "_check_on_host", lambda *_, **__: pytest.fail("looked at number by number"))
    table = torch.ones(4, 400, dtype=torch.int64)
    check(RowBatch(**fields(block_table=table)))
    table[0, 1] = 0
    with pytest.raises(ValueError, match="got the null block 0"):
        check(RowBatch(**fields(block_table=table)))


def test_legal_rows_pass() -> None:
    rows = RowBatch(**fields())
    assert rows.num_rows == 4
    check(rows)
    check(rows, lookahead=2)


def test_no_rows_are_legal() -> None:
    empty = {name: tensor[:0] for name, tensor in fields().items()}
    check(RowBatch(**empty))


@pytest.mark.parametrize(
    "name, value",
    [
        ("token", torch.zeros(4)),
        ("token", torch.zeros(4, 1, dtype=torch.int64)),
        ("position", torch.zeros(3, dtype=torch.int64)),
        ("position", torch.zeros(4, dtype=torch.int32)),
        ("sequence", torch.zeros(4, dtype=torch.bool)),
        ("block_table", torch.zeros(4, dtype=torch.int64)),
        ("block_table", torch.zeros(3, 2, dtype=torch.int64)),
        ("hidden", torch.zeros(4)),
        ("hidden", torch.zeros(3, 6)),
        ("hidden", torch.zeros(4, 6, dtype=torch.int64)),
        ("position", torch.zeros(4, dtype=torch.int64, device="meta")),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.dtype} {list(value.shape)} {value.device}",
)
def test_wrong_shapes_and_dtypes_name_the_field(name: str, value: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=rf"RowBatch\.{name}: expected"):
        RowBatch(**fields(**{name: value}))


@pytest.mark.parametrize(
    "name, value, names",
    [
        ("token", [3, 4, 7, 0], "0 to 6, got 7"),
        ("token", [3, -1, 5, 0], "got -1"),
        ("sequence", [1, 1, 3, 0], "0 to 2, got 3"),
        ("sequence", [1, 2, 1, 0], "side by side"),
        ("position", [4, 6, 0, 0], "consecutive"),
        ("position", [4, 4, 0, 0], "consecutive"),
        ("position", [5, 4, 0, 0], "consecutive"),
        ("position", [7, 8, 0, 0], "got 8"),
        ("position", [4, 5, 4, 0], "null block"),
        ("block_table", [[1, 4], [1, 4], [3, 0], [0, 0]], "0 to 3, got 4"),
    ],
    ids=str,
)
def test_wrong_values_name_the_field(name: str, value: list[Any], names: str) -> None:
    rows = RowBatch(**fields(**{name: torch.tensor(value)}))
    with pytest.raises(ValueError, match=names) as caught:
        check(rows)
    assert "RowBatch." in str(caught.value)


def test_lookahead_must_fit_the_blocks() -> None:
    rows = RowBatch(**fields())
    with pytest.raises(ValueError, match="position"):
        check(rows, lookahead=3)
    with pytest.raises(ValueError, match="null block"):
        check(RowBatch(**fields(position=torch.tensor([0, 1, 2, 0]))), lookahead=2)


@pytest.mark.parametrize("num_rows, max_blocks", [(4, 2), (6, 2), (4, 5), (4, 1)])
def test_rows_of_any_strides_are_padded_to_contiguous_ones(num_rows: int, max_blocks: int) -> None:
    """A prefill's rows share one block table by a stride of 0; native code would read it as memory."""
    strided = RowBatch(
        token=torch.arange(8)[::2],
        hidden=torch.arange(48.0).view(6, 8)[:, ::2].T,
        position=torch.arange(8)[::2],
        sequence=torch.tensor(1).expand(4),
        block_table=torch.tensor([3, 2]).expand(4, 2),
    )
    padded = padded_rows(strided, num_rows, max_blocks)
    kept = min(max_blocks, 2)
    for name in RowBatch.__slots__:
        ours, theirs = getattr(padded, name), getattr(strided, name)
        assert ours.is_contiguous(), name
        if name == "block_table":
            assert torch.equal(ours[:4, :kept], theirs[:, :kept])
            assert ours.shape == (num_rows, max_blocks)
            assert not ours[:4, kept:].any()
        else:
            assert torch.equal(ours[:4], theirs)
        assert not ours[4:].any(), name


def test_numbers_may_lie_apart_from_the_hiddens_and_are_brought_beside_them() -> None:
    rows = RowBatch(**fields())
    moved = RowBatch(**fields(hidden=torch.zeros(4, 6, device="meta"))).beside_hiddens()
    assert {getattr(moved, name).device.type for name in ("token", "position", "sequence", "block_table")} == {"meta"}
    assert rows.beside_hiddens() is rows
    with pytest.raises(ValueError, match=r"RowBatch\.position: expected device meta like token, got cpu"):
        RowBatch(**fields(token=torch.zeros(4, dtype=torch.int64, device="meta")))
