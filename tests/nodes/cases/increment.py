import torch

from nodes import Increment
from tests.support.node_cases import Example, NodeCase, Sizes


def positions(sizes: Sizes) -> dict[str, torch.Tensor]:
    return {"x": torch.arange(sizes["n"]) * 5}


CASE = NodeCase(
    examples=tuple(
        Example(node=node, ports={"x": "i64[n]"}, sizes=({"n": 3}, {"n": 0}, {"n": 1}), values=positions)
        for node in (Increment(), Increment(by=-4))
    ),
    accepts={
        "x more_dims": "any shape",
        "x fewer_dims": "any shape",
        "x first_dim": "any shape",
        "x last_dim": "any shape",
    },
    free_attributes=frozenset({"by"}),
)
