import torch

from nodes import Choose
from tests.support.node_cases import Example, NodeCase, Sizes


def conditions(sizes: Sizes) -> dict[str, torch.Tensor]:
    return {"condition": torch.arange(sizes["n"]) % 3 == 1}


CASE = NodeCase(
    examples=(
        Example(
            node=Choose(),
            ports={"condition": "bool[n]", "chosen": "T[n, width]", "other": "T[n, width]"},
            sizes=({"n": 5, "width": 3}, {"n": 0, "width": 3}, {"n": 1, "width": 1}),
            values=conditions,
        ),
    ),
    blames={
        "chosen other_float": "other",
        "chosen no_float": "other",
        "chosen last_dim": "other",
        "chosen first_dim": "condition",
        "chosen more_dims": "condition",
        "chosen fewer_dims": "condition",
    },
)
