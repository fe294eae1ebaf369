from nodes import AllReduce
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=(
        Example(
            node=AllReduce(axis="tp", num_ranks=1),
            ports={"x": "T[n, d]"},
            sizes=({"n": 3, "d": 7}, {"n": 0, "d": 7}, {"n": 1, "d": 1}),
        ),
    ),
    accepts={
        "x other_float": "any floating point dtype",
        "x more_dims": "any number of dims",
        "x fewer_dims": "any number of dims",
        "x first_dim": "the number of rows is free",
        "x last_dim": "the number of columns is free",
    },
)
