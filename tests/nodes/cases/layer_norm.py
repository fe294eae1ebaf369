from nodes import LayerNorm
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=(
        Example(
            node=LayerNorm(eps=1e-6),
            ports={"x": "T[n, d]", "weight": "T[d]", "bias": "T[d]"},
            sizes=({"n": 3, "d": 7}, {"n": 0, "d": 7}, {"n": 1, "d": 1}, {"n": 2, "d": 1000}),
        ),
    ),
    accepts={
        "x more_dims": "any number of leading dims",
        "x fewer_dims": "any number of leading dims",
        "x first_dim": "the number of rows is free",
    },
    blames={"x other_float": "weight", "x last_dim": "weight"},
)
