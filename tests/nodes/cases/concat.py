from nodes import Concat
from tests.support.node_cases import Example, NodeCase

CASE = NodeCase(
    examples=(
        Example(
            node=Concat(),
            ports={"left": "T[n, a]", "right": "T[n, b]"},
            sizes=({"n": 3, "a": 7, "b": 2}, {"n": 0, "a": 7, "b": 2}, {"n": 1, "a": 1, "b": 1}),
        ),
    ),
    accepts={"left last_dim": "the widths need not agree", "right last_dim": "the widths need not agree"},
    blames={
        "left no_float": "right",
        "left other_float": "right",
        "left more_dims": "right",
        "left fewer_dims": "right",
        "left first_dim": "right",
    },
)
