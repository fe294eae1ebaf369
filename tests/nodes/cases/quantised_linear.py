import torch

from nodes import QuantisedLinear
from tests.support.node_cases import Example, NodeCase, Sizes


def int8_weight(sizes: Sizes) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (sizes["out"], sizes["d"])
    return {"weight": torch.randint(-127, 128, shape, generator=generator).to(torch.int8)}


CASE = NodeCase(
    examples=(
        Example(
            node=QuantisedLinear(),
            ports={"x": "T[n, d]", "weight": "i8[out, d]", "scale": "f32[out]"},
            sizes=({"n": 3, "d": 7, "out": 5}, {"n": 0, "d": 7, "out": 5}, {"n": 1, "d": 63, "out": 1}),
            values=int8_weight,
        ),
    ),
    accepts={
        "x other_float": "the weight is of no model dtype",
        "x more_dims": "any number of leading dims",
        "x fewer_dims": "any number of leading dims",
        "x first_dim": "the number of rows is free",
    },
    blames={"x last_dim": "weight", "weight first_dim": "scale"},
)
