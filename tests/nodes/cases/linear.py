from nodes import Linear
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=(
        Example(
            node=Linear(),
            ports={"x": "T[n, d]", "weight": "T[out, d]"},
            sizes=({"n": 3, "d": 7, "out": 5}, {"n": 0, "d": 7, "out": 5}, {"n": 1, "d": 63, "out": 1}),
        ),
    ),
    accepts={
        "x more_dims": "any number of leading dims",
        "x fewer_dims": "any number of leading dims",
        "x first_dim": "the number of rows is free",
        "weight first_dim": "the output width is free",
    },
    blames={"x other_float": "weight", "x last_dim": "weight"},
)
