from nodes import Add
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=(
        Example(
            node=Add(),
            ports={"left": "T[n, d]", "right": "T[n, d]"},
            sizes=({"n": 3, "d": 7}, {"n": 0, "d": 7}, {"n": 1, "d": 1}),
        ),
    ),
    blames={
        "left no_float": "right",
        "left other_float": "right",
        "left more_dims": "right",
        "left fewer_dims": "right",
        "left first_dim": "right",
        "left last_dim": "right",
    },
)
