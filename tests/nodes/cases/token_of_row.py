import torch

from nodes import TokenOfRow
from tests.support.node_cases import Example, NodeCase, Sizes


def rows_and_tokens(sizes: Sizes) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    row = torch.randint(sizes["rows"], (sizes["n"],), generator=generator)
    return {"row": row, "token_ids": 3 + 2 * torch.arange(sizes["rows"])}


CASE = NodeCase(
    examples=(
        Example(
            node=TokenOfRow(),
            ports={"row": "i64[n]", "token_ids": "i64[rows]"},
            sizes=({"n": 3, "rows": 7}, {"n": 0, "rows": 7}, {"n": 5, "rows": 1}),
            values=rows_and_tokens,
        ),
    ),
    dtypes=("i64",),
    accepts={
        "row first_dim": "the number of drafts is free",
        "row last_dim": "the number of drafts is free",
        "token_ids first_dim": "any number of tokens may be drafted",
        "token_ids last_dim": "any number of tokens may be drafted",
    },
)
