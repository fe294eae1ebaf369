import torch

from nodes import LocalExperts
from tests.support.node_cases import Example, NodeCase, Sizes


def choices(sizes: Sizes) -> dict[str, torch.Tensor]:
    offsets = torch.arange(sizes["n"]).unsqueeze(1) * 2 + torch.arange(sizes["k"])
    return {"ids": (offsets % sizes["experts"]).sort(dim=1).values}


CASE = NodeCase(
    examples=(
        Example(
            node=LocalExperts(limit=7.0, first=1, num_experts=9),
            ports={
                "x": "T[n, hidden]",
                "ids": "i64[n, k]",
                "weights": "f32[n, k]",
                "gate_up": "T[experts, 2*inter, hidden]",
                "down": "T[experts, hidden, inter]",
            },
            sizes=(
                {"n": 5, "hidden": 7, "k": 2, "experts": 5, "inter": 3},
                {"n": 0, "hidden": 7, "k": 2, "experts": 5, "inter": 3},
                {"n": 1, "hidden": 1, "k": 1, "experts": 1, "inter": 1},
            ),
            values=choices,
        ),
    ),
    blames={
        "x other_float": "down",
        "x last_dim": "down",
        "x first_dim": "ids",
        "ids last_dim": "weights",
        "down first_dim": "gate_up",
        "down last_dim": "gate_up",
    },
    free_attributes=frozenset({"first"}),
)
