import torch

from nodes import ExtendSelection


def test_extend_selection_adds_the_rows_since_its_own_included() -> None:
    selected = torch.tensor([[4, 5, -1, 8], [0, -1, -1, -1], [-1, -1, -1, -1]])
    selected_at, position = torch.tensor([8, 0, 3]), torch.tensor([10, 0, 6])
    got = ExtendSelection(rows=3).reference(selected, selected_at, position)
    assert got.tolist() == [[4, 5, -1, 8, 9, 10, -1], [0, -1, -1, -1, -1, -1, -1], [-1, -1, -1, -1, 4, 5, 6]]
