import torch

from nodes import Embedding
from tests.support.node_cases import Example, NodeCase, Sizes


def tokens(sizes: Sizes) -> dict[str, torch.Tensor]:
    return {"token": torch.arange(sizes["n"]) * 3 % sizes["vocab"]}


CASE = NodeCase(
    examples=(
        Example(
            node=Embedding(),
            ports={"token": "i64[n]", "weight": "T[vocab, hidden]"},
            sizes=(
                {"n": 3, "vocab": 11, "hidden": 5},
                {"n": 0, "vocab": 11, "hidden": 5},
                {"n": 1, "vocab": 1, "hidden": 1},
                {"n": 7, "vocab": 2, "hidden": 3},
            ),
            values=tokens,
        ),
    ),
    accepts={
        "token first_dim": "the number of rows is free",
        "token last_dim": "the number of rows is free",
        "weight other_float": "the table's dtype is the model's",
        "weight first_dim": "the vocabulary is the checkpoint's",
        "weight last_dim": "the width is the checkpoint's",
    },
)
