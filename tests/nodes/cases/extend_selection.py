import torch

from nodes import ExtendSelection
from tests.support.node_cases import Example, NodeCase, Sizes


def rows(sizes: Sizes) -> dict[str, torch.Tensor]:
    num_rows, width = sizes["n"], sizes["w"]
    selected = torch.arange(width).expand(num_rows, width).clone()
    selected[:, width // 2 :] = -1
    return {
        "selected": selected,
        "selected_at": torch.full((num_rows,), width),
        "position": width + torch.arange(num_rows) % 3,
    }


CASE = NodeCase(
    examples=tuple(
        Example(
            node=ExtendSelection(rows=rows_added),
            ports={"selected": "i64[n, w]", "selected_at": "i64[n]", "position": "i64[n]"},
            sizes=({"n": 3, "w": 7}, {"n": 0, "w": 7}, {"n": 1, "w": 1}, {"n": 2, "w": 0}),
            values=rows,
        )
        for rows_added in (2, 1)
    ),
    accepts={"selected last_dim": "a selection may have any width"},
    blames={"selected first_dim": "selected_at"},
)
