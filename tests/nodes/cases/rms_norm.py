from nodes import RmsNorm
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=(
        Example(
            node=RmsNorm(eps=1e-5),
            ports={"x": "T[n, d]", "weight": "T[d]"},
            sizes=({"n": 3, "d": 7}, {"n": 0, "d": 7}, {"n": 1, "d": 1}, {"n": 2, "d": 1000}),
        ),
        Example(
            node=RmsNorm(eps=0.5),
            ports={"x": "T[n, heads, d]", "weight": "T[d]"},
            sizes=({"n": 3, "heads": 3, "d": 5}, {"n": 0, "heads": 3, "d": 5}),
        ),
    ),
    accepts={
        "x more_dims": "any number of leading dims",
        "x fewer_dims": "any number of leading dims",
        "x first_dim": "the number of rows is free",
    },
    blames={"x other_float": "weight", "x last_dim": "weight"},
)
