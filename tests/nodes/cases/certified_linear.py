import torch

from nodes import CertifiedLinear
from tests.support.node_cases import Example, NodeCase, Sizes


def int8_rows(sizes: Sizes) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (sizes["out"], sizes["d"])
    return {"rows": torch.randint(-127, 128, shape, generator=generator).to(torch.int8)}


CASE = NodeCase(
    examples=(
        Example(
            node=CertifiedLinear(),
            ports={
                "x": "T[n, d]",
                "weight": "T[out, d]",
                "rows": "i8[out, d]",
                "scale": "f32[out]",
                "error": "f32[out]",
            },
            sizes=({"n": 3, "d": 7, "out": 5}, {"n": 0, "d": 7, "out": 5}, {"n": 1, "d": 63, "out": 1}),
            values=int8_rows,
        ),
    ),
    accepts={
        "x more_dims": "any number of leading dims",
        "x fewer_dims": "any number of leading dims",
        "x first_dim": "the number of rows is free",
    },
    blames={"x other_float": "weight", "x last_dim": "weight", "weight first_dim": "rows"},
)
